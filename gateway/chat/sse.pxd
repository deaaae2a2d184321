cimport cython

from gateway.base cimport search
from gateway.base.search cimport Text

cdef class Chunk:
    cdef public frozenset finished
    cdef public object counts, id
    cdef public bint empty, error, only_usage, raises
    cdef public str service_tier

@cython.locals(at=Py_ssize_t, first=Py_ssize_t, name=bytes)
cpdef Py_ssize_t field_at(bytes data, Py_ssize_t start, Py_ssize_t end)
@cython.locals(end=Py_ssize_t)
cpdef Py_ssize_t end_of_event(bytes data, Py_ssize_t start)
@cython.locals(begin=Py_ssize_t, end=Py_ssize_t, text=Text)
cpdef tuple parse_event(bytes event)
cdef Py_ssize_t _end_of_string(Text text, Py_ssize_t at) noexcept
cdef Py_ssize_t _end_of_value(bytes data, Text text, Py_ssize_t at) noexcept
@cython.locals(at=Py_ssize_t, completion=cython.longlong, count=cython.longlong, most=Py_ssize_t, output=cython.longlong, prompt=cython.longlong, size=Py_ssize_t, start=Py_ssize_t, total=cython.longlong)
cdef _counts_at(bytes data, Text text, Py_ssize_t begin)
@cython.locals(at=Py_ssize_t, finished=bint, indexed=bint, size=Py_ssize_t, start=Py_ssize_t, value=Py_ssize_t)
cdef Py_ssize_t _choices_at(bytes data, Text text, Py_ssize_t begin) noexcept
@cython.locals(at=Py_ssize_t, begin=Py_ssize_t, choices=Py_ssize_t, empty=bint, finished=bint, id_at=Py_ssize_t, id_end=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t, text=Text)
cdef Chunk _read_at_once(bytes data)
@cython.locals(facts=Chunk)
cpdef Chunk read(bytes name, bytes data)
cdef object _decode(decoder, raw)
cdef object _counts(chunk, choices)
@cython.locals(end=Py_ssize_t, found=bytes, text=Text)
cpdef str completion_id(bytes events)
cpdef str id_text(value)
@cython.locals(field=Py_ssize_t)
cpdef tuple plain_events(bytes data)
