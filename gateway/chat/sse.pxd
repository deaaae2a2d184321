cimport cython

cdef class Chunk:
    cdef public frozenset finished
    cdef public object counts
    cdef public bint empty, error, only_usage, raises
    cdef public bytes id
    cdef public str service_tier

cpdef tuple parse_event(bytes event)
cpdef Chunk read(bytes name, bytes data)
cpdef tuple plain_events(bytes data)
