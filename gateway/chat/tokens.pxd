cimport cython

from gateway.base cimport search
from gateway.base.search cimport Text
from gateway.chat cimport sse

cdef Py_ssize_t _large

cdef class OutputCounter:
    cdef public Py_ssize_t events, bytes, _measured_events, _measured_least, _unread_bytes, _next, _sampled_bytes, _stride
    cdef public double _measured_text
    cdef public list _unmeasured, _samples
    cpdef bint counts(self, Py_ssize_t size)
    @cython.locals(size=Py_ssize_t, before=Py_ssize_t, sampled=bint)
    cpdef add(self, bytes data, Py_ssize_t events)
    cpdef add_measured(self, bytes event)
    cpdef _thin_out(self)

cdef class Template:
    cdef public bytes before, after, _head
    cdef public Py_ssize_t size, novel, _learn_at
    @cython.locals(size=Py_ssize_t, byte=cython.uchar, text=Text)
    cpdef Py_ssize_t end_of(self, bytes data, Py_ssize_t at)
    cpdef bint has_only_text(self, bytes data, Py_ssize_t limit)
    @cython.locals(begin=Py_ssize_t, data=Text, end=Py_ssize_t)
    cpdef learn(self, bytes event, Py_ssize_t events)
    @cython.locals(end=Py_ssize_t)
    cpdef bint _learn_head(self, bytes data)
