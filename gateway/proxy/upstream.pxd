cimport cython

from gateway.chat.tokens cimport Text
from gateway.proxy.relay cimport Relay

@cython.locals(at=Py_ssize_t, begin=Py_ssize_t, digit=Py_ssize_t, digits=Text, text=Text, end=Py_ssize_t, size=Py_ssize_t, pieces=list)
cpdef bytes whole_chunks(bytes data)

@cython.locals(at=Py_ssize_t, digit=Py_ssize_t, digits=Text, text=Text, end=Py_ssize_t, framed=bint, size=Py_ssize_t, whole=bint)
cpdef Py_ssize_t begin_of_chunk(bytes data)

cdef char* _received
cdef Py_ssize_t _small_read
cdef bytes _DIGITS
cdef object _BODY, _HEAD, _WAITING

cdef class ResponseReader:
    cdef public Relay _relay
    cdef public object failure, headers, on_body, on_head
    cdef public object _connection, _keep, _linger, _on_data, _on_end, _parser, _pooled_protocol, _state, _transport, _turns
    cdef public bint framed, queued, _backlog, _in_chunk, _line_ended, _paused, _reading
    cdef public Py_ssize_t status, _head_bytes, _parsed_head_bytes, _pieces_in_body, _surplus
    cdef public list _pieces
    @cython.locals(data=bytes, pieces=list)
    cpdef buffer_updated(self, Py_ssize_t nbytes)
    cpdef _pass_on(self)
    @cython.locals(begin=Py_ssize_t)
    cdef bint _passes(self, bytes data)
    cpdef _parse(self, bytes data)
