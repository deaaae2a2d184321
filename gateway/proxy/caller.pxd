cimport cython

cdef extern from "<unistd.h>":
    ssize_t write(int, const char*, size_t)

cdef class CallerConnection:
    cdef public object _owner, _transport, on_flow, on_gone
    cdef public int _descriptor
    cdef public bint _bodyless, _flushed, _keep_alive, chunked, started, finished, gone
    cdef public bytes _last
    cdef public str request_id
    cpdef begin(self, bytes head, bytes first)
    cpdef write(self, bytes data)
    @cython.locals(sent=Py_ssize_t)
    cpdef write_chunk(self, bytes chunk)
    cpdef _write(self, bytes data)
    cdef bint _is_flushed(self)
    cpdef finish(self)
