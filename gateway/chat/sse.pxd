cimport cython

from gateway.base cimport search

cdef class Chunk:
    cdef public frozenset finished
    cdef public object counts, id
    cdef public bint empty, error, only_usage, raises
    cdef public str service_tier

@cython.locals(at=Py_ssize_t, first=Py_ssize_t, name=bytes)
cpdef Py_ssize_t field_at(bytes data, Py_ssize_t start, Py_ssize_t end)
@cython.locals(end=Py_ssize_t)
cpdef Py_ssize_t end_of_event(bytes data, Py_ssize_t start)
@cython.locals(end=Py_ssize_t)
cpdef tuple parse_event(bytes event)
cpdef Chunk read(bytes name, bytes data)
@cython.locals(field=Py_ssize_t)
cpdef tuple plain_events(bytes data)
