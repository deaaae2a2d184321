cimport cython

from gateway.base.search cimport Text
from gateway.proxy cimport framing
from gateway.proxy.relay cimport Relay

cdef char* _received
cdef Py_ssize_t _small_read
cdef object _BODY, _HEAD, _WAITING

cdef class ResponseReader:
    cdef public Relay _relay
    cdef public object failure, on_body, on_head
    cdef public bytes _head
    cdef public object _connection, _headers, _keep, _linger, _media_type, _on_data, _on_end, _parser, _pooled_protocol, _state, _transport, _turns
    cdef public bint framed, named, queued, _backlog, _by_hand, _in_chunk, _line_ended, _paused, _reading
    cdef public Py_ssize_t status, _head_bytes, _parsed_head_bytes, _pieces_in_body, _surplus
    cdef public list _pieces
    @cython.locals(data=bytes, pieces=list)
    cpdef buffer_updated(self, Py_ssize_t nbytes)
    cpdef _pass_on(self)
    @cython.locals(begin=Py_ssize_t)
    cdef bint _passes(self, bytes data)
    cpdef _parse(self, bytes data)
    @cython.locals(at=Py_ssize_t, found=tuple, text=Text)
    cdef bint _takes_head(self, bytes data) except -1
    @cython.locals(end=Py_ssize_t, last=bint, whole=bytes)
    cdef bint _takes_chunks(self, bytes data, Py_ssize_t at) except -1
    cpdef keep_only_id(self)
    cpdef _report_head(self)
