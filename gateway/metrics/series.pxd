cimport cython

cdef class SharedHistogram:
    cdef double[:] _numbers, _bounds
    cdef Py_ssize_t _above
    @cython.locals(place=Py_ssize_t)
    cpdef observe(self, double value, double times=*)

cdef class RequestSeries:
    cdef double[:] _attempts, _charged, _charged_to_group, _completion, _cost, _margin, _of_group, _prompt
    cdef double[:] _read, _requests, _unknown, _written
    cdef public SharedHistogram duration, first_byte, longest_gap
    cpdef count(self, double duration_s, double charged)
    cpdef count_cost(self, double cost, double margin)
    cpdef count_unknown_cost(self)
    cpdef count_answer(self, double first_byte_s, double longest_gap_s)
    cpdef count_tokens(self, double prompt, double completion, double read, double written)
