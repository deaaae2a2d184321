cimport cython

from gateway.base cimport search
from gateway.chat.events cimport EventStream
from gateway.proxy.caller cimport CallerConnection

cdef object _COLLECTING, _RELAYING

cdef class Redaction:
    cdef public EventStream _events
    cdef public bytes _tail
    cdef public Py_ssize_t shortest
    cdef public tuple secrets
    cpdef bytes redact_whole(self, bytes whole)
    cpdef bytes redact_rest(self, bytes rest)
    cpdef bytes _take_held(self)
    @cython.locals(secret=bytes)
    cpdef bytes _redact(self, bytes data)

cdef class Relay:
    cdef public object channel, ended, failure, hooks, state, translation
    cdef public object _begin, _caller, _deadline_timer, _drain_timer, _exchange, _loop, _now, _source, _stall_timer
    cdef public bint slowed, streamed, watched, _left, _over
    cdef public CallerConnection _chunked
    cdef public Redaction _secrets
    cdef public EventStream events
    cdef public list _collected
    cdef public Py_ssize_t max_prelude, _max_received, _passed_bytes, _received, _shortest_secret
    cdef public double _deadline, _last_read_at, _longest_gap
    @cython.locals(caller=CallerConnection, events=EventStream, size=Py_ssize_t, now=double, gap=double)
    cpdef bint passes(self, bytes chunk, Py_ssize_t begin)
    cpdef _note_passed(self)
    @cython.locals(events=EventStream, now=double, gap=double, whole=bytes)
    cpdef bint _on_data(self, bytes data)
    cpdef end(self, reason)
    cpdef _begin_if_first_event(self)
    cpdef bytes _passed(self, bytes whole)
    cpdef _set_deadline(self, double deadline)
    cpdef watch(self)
