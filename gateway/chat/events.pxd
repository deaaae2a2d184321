cimport cython

from gateway.base cimport search
from gateway.base.search cimport Text
from gateway.chat cimport sse
from gateway.chat.sse cimport Chunk
from gateway.chat.tokens cimport OutputCounter, Template
from gateway.chat.usage cimport ReportedUsage

cdef class EventStream:
    cdef public bint started, first_error, error_relayed, done, concluded, backlog
    cdef public bint _drop_empty, _drop_usage, _ended_at_boundary, _in_overlong, _unusual
    cdef public Py_ssize_t events, output_at_usage, _choices, _max_event_bytes
    cdef public bytes error
    cdef public str completion_id
    cdef public object told, _long
    cdef public ReportedUsage usage
    cdef public frozenset _appeared, _finished_choices
    cdef public bytearray _pending
    cdef public Template template
    cdef public OutputCounter output
    cpdef bint passes(self, bytes data, Py_ssize_t begin, Py_ssize_t end)
    cpdef bytes feed(self, bytes data)
    @cython.locals(end=Py_ssize_t, count=Py_ssize_t, stop=Py_ssize_t, text=Text)
    cpdef bytes _take_from_boundary(self, bytes data)
    @cython.locals(end=Py_ssize_t, events=Py_ssize_t)
    cpdef Py_ssize_t _take_run(self, bytes data)
    @cython.locals(template=Template, end=Py_ssize_t, events=Py_ssize_t, stop=Py_ssize_t)
    cpdef tuple _run_of_text(self, bytes data)
    @cython.locals(chunk=Chunk, name=bytes, data=bytes, is_done=bint, relayed=bint, dropped=bint)
    cpdef bytes _take_event(self, bytes event)
    @cython.locals(usage=ReportedUsage)
    cpdef _note_facts(self, Chunk chunk)
    cpdef _note_finish(self, bytes event, Chunk chunk, bint is_done)
    cpdef _count_output(self, bytes event, Chunk chunk)
