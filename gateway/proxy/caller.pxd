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
    cpdef bytes stream_head(self, headers)
    cdef bytes _head(self, Py_ssize_t status, headers, str framing, str constant=*)

@cython.locals(given=dict, known=dict, lines=list, line=str, text=str)
cpdef bytes render_head(Py_ssize_t status, headers, str framing, str constant=*)
cdef str _start(Py_ssize_t status, Py_ssize_t second)
cdef dict _LINES, _MORE_LINES, _STARTS
cdef str _STREAM_LINES
