# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The bytes of a command, which `gateway.store.client.protocol` describes."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.string cimport memcpy

from hiredis import pack_command

cdef extern from "Python.h":
    PyObject* PyTuple_GetItem "PyTuple_GET_ITEM"(object, Py_ssize_t)
    bint PyUnicode_CheckExact(PyObject*)
    bint PyBytes_CheckExact(PyObject*)
    bint PyLong_CheckExact(PyObject*)
    const char* PyUnicode_AsUTF8AndSize(PyObject* text, Py_ssize_t* size) except NULL
    long long PyLong_AsLongLongAndOverflow(PyObject* number, int* overflow) except? -1

cdef enum:
    ROOM = 64 * 1024
    FRAMING = 64  # no less than the framing of a part with a number takes

cdef char PACKED[ROOM]


cdef inline char* put_number(char* at, unsigned long long number) noexcept nogil:
    """Write the digits of a number. Return where they end."""
    cdef char digits[20]
    cdef int count = 0
    if number < 10:
        at[0] = <char>(c'0' + number)
        return at + 1
    if number < 100:
        at[0] = <char>(c'0' + number // 10)
        at[1] = <char>(c'0' + number % 10)
        return at + 2
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


cdef inline char* put_head(char* at, char kind, unsigned long long number) noexcept nogil:
    """Write the line that begins a command or a part of it. Return where it ends."""
    at[0] = kind
    at = put_number(at + 1, number)
    at[0] = c'\r'
    at[1] = c'\n'
    return at + 2


cdef inline char* put_part(char* at, const char* part, Py_ssize_t size) noexcept nogil:
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
    """Return a command in the form in which it is sent.

    One that is long, or has something else than text, bytes and numbers of 64 bits, is left to hiredis.
    """
    cdef Py_ssize_t size = 0, place
    cdef int overflow = 0
    cdef long long number
    cdef const char* text
    cdef char* at = put_head(PACKED, c'*', PyTuple_GET_SIZE(command))
    cdef char* end = PACKED + ROOM - FRAMING
    cdef PyObject* part
    for place in range(PyTuple_GET_SIZE(command)):
        part = PyTuple_GetItem(command, place)
        if PyUnicode_CheckExact(part):
            text = PyUnicode_AsUTF8AndSize(part, &size)
        elif PyBytes_CheckExact(part):
            text, size = PyBytes_AS_STRING(<object>part), PyBytes_GET_SIZE(<object>part)
        elif PyLong_CheckExact(part):
            number = PyLong_AsLongLongAndOverflow(part, &overflow)
            if overflow or at >= end:
                return pack_command(command)
            at = put_signed(at, number)
            continue
        else:
            return pack_command(command)
        if size >= end - at:
            return pack_command(command)
        at = put_part(at, text, size)
    return PyBytes_FromStringAndSize(PACKED, at - PACKED)


def fill(tuple parts, str request_id, tuple values):
    """Return the command of these parts: bytes, None for the id of a request, anything else for the next value."""
    cdef Py_ssize_t size = 0, place, taken = 0
    cdef int overflow = 0
    cdef long long number
    cdef const char* text
    cdef char* at = PACKED
    cdef char* end = PACKED + ROOM - FRAMING
    cdef Py_ssize_t id_size = 0
    cdef const char* id_text = PyUnicode_AsUTF8AndSize(<PyObject*>request_id, &id_size)
    cdef PyObject* part
    cdef bint framed
    for place in range(PyTuple_GET_SIZE(parts)):
        part = PyTuple_GetItem(parts, place)
        framed = False
        if PyBytes_CheckExact(part):
            text, size = PyBytes_AS_STRING(<object>part), PyBytes_GET_SIZE(<object>part)
        elif part == <PyObject*>None:
            text, size = id_text, id_size
        else:
            if taken >= PyTuple_GET_SIZE(values):
                raise ValueError("fewer values than holes")
            part = PyTuple_GetItem(values, taken)
            taken += 1
            framed = True
            if PyUnicode_CheckExact(part):
                text = PyUnicode_AsUTF8AndSize(part, &size)
            elif PyBytes_CheckExact(part):
                text, size = PyBytes_AS_STRING(<object>part), PyBytes_GET_SIZE(<object>part)
            else:
                number = PyLong_AsLongLongAndOverflow(part, &overflow)
                if overflow or at >= end:
                    raise ValueError("a number of more than 64 bits")
                at = put_signed(at, number)
                continue
        if size >= end - at:
            raise ValueError("a command of more than 64 KiB is not filled")
        if framed:
            at = put_part(at, text, size)
        else:
            memcpy(at, text, size)
            at += size
    return PyBytes_FromStringAndSize(PACKED, at - PACKED)
