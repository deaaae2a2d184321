cimport cython

@cython.locals(found=tuple)
cpdef tuple _name_of(str name)

@cython.locals(at=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t, in_path=bytes, in_name=bytes, in_value=bytes)
@cython.locals(headers=list, values=dict, known=tuple, value=str, length=str, path=str)
cpdef tuple whole_request(bytes data)
