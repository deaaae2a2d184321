cimport cython

cdef class CommandQueue:
    cdef public double _timeout_s
    cdef public object _ended, _feed, _loop, _next_reply, _sent, _task, _timer, _transport
    cdef public list _unsent
    cdef public bint lost, opened
    @cython.locals(unsent=list)
    cpdef send(self, bytes packed, convert=*, script=*, future=*)
    @cython.locals(demoted=bint, replies=Py_ssize_t, oldest=double)
    cpdef data_received(self, bytes data)
    @cython.locals(unsent=list, packed=list, command=tuple)
    cpdef _flush(self)

cdef class SingleServer:
    cdef public double _pause_s, _timeout_s
    cdef public object redis, _link, _pool
    cdef public CommandQueue _connection
    cpdef send(self, bytes packed, convert, script)

cdef _answer(future, reply, convert)
