cimport cython

ctypedef const unsigned char* Text

cdef bytes _IN_NAME, _IN_PATH, _IN_VALUE
cdef dict _NAMES

@cython.locals(found=tuple)
cpdef tuple _name_of(str name)

@cython.locals(at=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, most=Py_ssize_t, size=Py_ssize_t)
@cython.locals(text=Text, in_path=Text, in_name=Text, in_value=Text)
@cython.locals(headers=list, values=dict, known=tuple, value=str, length=str, connection=str, path=str)
cpdef tuple whole_request(bytes data)
