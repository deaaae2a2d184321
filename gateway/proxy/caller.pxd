cdef class CallerConnection:
    cdef public object _owner, _transport, on_flow, on_gone
    cdef public bint _bodyless, _keep_alive, chunked, started, finished, gone
    cdef public bytes _last
    cdef public str request_id
    cpdef begin(self, bytes head, bytes first)
    cpdef write(self, bytes data)
    cpdef write_chunk(self, bytes chunk)
    cpdef finish(self)
