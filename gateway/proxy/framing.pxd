cimport cython

from gateway.base cimport search
from gateway.base.search cimport Text

cdef bytes _DIGITS, _STATUS

@cython.locals(begin=Py_ssize_t, digit=Py_ssize_t, digits=Text, text=Text, size=Py_ssize_t, pieces=list)
cpdef bytes whole_chunks(bytes data, Py_ssize_t at=*, Py_ssize_t end=*)

@cython.locals(at=Py_ssize_t, digit=Py_ssize_t, digits=Text, text=Text, end=Py_ssize_t, framed=bint, size=Py_ssize_t, whole=bint)
cpdef Py_ssize_t begin_of_chunk(bytes data)

@cython.locals(at=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t, chunks=Py_ssize_t, colon=bint, named=bint, text=Text)
cpdef tuple ordinary_head(bytes data)
