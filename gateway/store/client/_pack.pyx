# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The bytes of a command, which `gateway.store.client.protocol` describes."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from hiredis import pack_command

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef extern from *:
    const char* SOURCE_DIGEST  # a macro that the build defines

SOURCE = SOURCE_DIGEST.decode()
"""The digest of the file that this was built from."""

cdef Py_ssize_t FRAMING = 32
"""No less than the framing of a part, and than a number of 64 bits, take."""


cdef char* put_number(char* at, unsigned long long number) noexcept nogil:
    """Write the digits of a number. Return where they end."""
    cdef char digits[20]
    cdef int count = 0
    while True:
        digits[count] = <char>(c'0' + number % 10)
        number //= 10
        count += 1
        if number == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at


cdef char* put_head(char* at, char kind, unsigned long long number) noexcept nogil:
    """Write the line that begins a command or a part of it. Return where it ends."""
    at[0] = kind
    at = put_number(at + 1, number)
    at[0] = c'\r'
    at[1] = c'\n'
    return at + 2


cdef char* put_part(char* at, const char* part, Py_ssize_t size) noexcept nogil:
    """Write one part with its framing. Return where it ends."""
    at = put_head(at, c'$', size)
    memcpy(at, part, size)
    at += size
    at[0] = c'\r'
    at[1] = c'\n'
    return at + 2


cdef char* put_signed(char* at, long long number) noexcept nogil:
    """Write a number as a part. Return where it ends."""
    cdef char digits[24]
    cdef char* end = digits
    cdef unsigned long long amount = <unsigned long long>number
    if number < 0:
        digits[0] = c'-'
        end += 1
        amount = 0 - amount
    end = put_number(end, amount)
    return put_part(at, digits, end - digits)


def pack(tuple command):
    """Return a command in the form in which it is sent. What is no text, bytes or number of 64 bits is left to hiredis."""
    cdef Py_ssize_t size = 0, room = FRAMING
    cdef int overflow = 0
    cdef long long number
    cdef const char* text
    cdef char* at
    cdef bytes packed
    for part in command:
        if type(part) is str:
            PyUnicode_AsUTF8AndSize(part, &size)
            room += size + FRAMING
        elif type(part) is bytes:
            room += PyBytes_GET_SIZE(part) + FRAMING
        elif type(part) is int:
            PyLong_AsLongLongAndOverflow(part, &overflow)
            if overflow:
                return pack_command(command)
            room += 2 * FRAMING
        else:
            return pack_command(command)
    packed = PyBytes_FromStringAndSize(NULL, room)
    at = put_head(PyBytes_AS_STRING(packed), c'*', len(command))
    for part in command:
        if type(part) is str:
            text = PyUnicode_AsUTF8AndSize(part, &size)
            at = put_part(at, text, size)
        elif type(part) is bytes:
            at = put_part(at, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
        else:
            number = PyLong_AsLongLongAndOverflow(part, &overflow)
            at = put_signed(at, number)
    return packed[: at - PyBytes_AS_STRING(packed)]
