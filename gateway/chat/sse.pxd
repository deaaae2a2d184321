cimport cython

cpdef tuple parse_event(bytes event)
cpdef read(bytes name, bytes data)
cpdef tuple plain_events(bytes data)
