from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp

ctypedef const unsigned char* Text

cdef extern from "<string.h>" nogil:
    void* memmem(const void* data, size_t size, const void* sought, size_t length)

cdef inline Py_ssize_t find(bytes data, bytes sought, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef const char* first = PyBytes_AS_STRING(data)
    cdef const char* what = PyBytes_AS_STRING(sought)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(sought)
    cdef const char* at = first + start
    cdef const char* last = first + min(end, PyBytes_GET_SIZE(data)) - length
    if length > 2:  # its first byte alone may be frequent
        at = <const char*>memmem(at, last - at + length, what, length) if at <= last else NULL
        return at - first if at is not NULL else -1
    while at <= last:
        at = <const char*>memchr(at, what[0], last - at + 1)
        if at is NULL:
            break
        if memcmp(at, what, length) == 0:
            return at - first
        at += 1
    return -1
