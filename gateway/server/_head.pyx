# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled parser of whole requests, which `gateway.server.head` describes."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeLatin1
from libc.string cimport memchr, memcmp

from multidict import istr

cdef extern from "<strings.h>" nogil:
    int strncasecmp(const char*, const char*, size_t)

cdef extern from *:
    const char* SOURCE_DIGEST  # a macro that the build defines

SOURCE = SOURCE_DIGEST.decode()
"""The digest of the files that this was built from."""

cdef enum:
    MOST = 32  # headers
    MOST_NAMES = 256

cdef dict NAMES = {}
cdef dict KNOWN = {}
"""The names of which aiohttp's parser knows the spelling."""

cdef char IN_NAME[256]
cdef char IN_VALUE[256]
cdef int code
for code in range(256):
    IN_NAME[code] = chr(code) in "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    IN_VALUE[code] = 0x20 <= code < 0x7F


cdef bint is_named(const char* name, Py_ssize_t size, const char* other, Py_ssize_t length) noexcept nogil:
    return size == length and strncasecmp(name, other, length) == 0


cdef object name_of(bytes name):
    """Return a header's name in the type that a dictionary of headers compares fastest. Names recur from request to request."""
    known = NAMES.get(name)
    if known is None:
        if not KNOWN:
            from aiohttp import hdrs  # which takes a tenth of a second: `gateway --version` needs none of it

            KNOWN.update({each.lower(): each for each in vars(hdrs).values() if isinstance(each, istr)})
        text = name.decode("latin-1")
        known = KNOWN.get(text.lower()) or istr(text)
        if len(NAMES) < MOST_NAMES:
            NAMES[name] = known
    return known


def whole_request(bytes data not None, Py_ssize_t most_path):
    """Return path, headers, bytes of names and values, and body of an ordinary `POST` that the data is; else None."""
    cdef const char* at = PyBytes_AS_STRING(data)
    cdef const char* end = at + PyBytes_GET_SIZE(data)
    cdef const char* path
    cdef const char* line_end
    cdef const char* names[MOST]
    cdef Py_ssize_t sizes[MOST]
    cdef const char* name
    cdef const char* value
    cdef const char* p
    cdef Py_ssize_t size, length, body = -1, total = 0
    cdef int count = 0, i
    cdef bint host = False
    cdef list headers = []
    if end - at < 32 or memcmp(at, b"POST /", 6) != 0:
        return None
    path = at + 5
    p = path
    while p < end and c'!' <= p[0] <= c'~' and p[0] != c'#':
        p += 1
    if p - path > most_path or end - p < 11 or memcmp(p, b" HTTP/1.1\r\n", 11) != 0:
        return None
    size = p - path
    at = p + 11
    while True:
        line_end = <const char*>memchr(at, c'\r', end - at)
        if line_end == NULL or end - line_end < 2 or line_end[1] != c'\n':
            return None
        if line_end == at:
            at += 2
            break
        name = at
        p = at
        while IN_NAME[<unsigned char>p[0]]:
            p += 1
        if p == name or p[0] != c':' or count == MOST:
            return None
        length = p - name
        for i in range(count):
            if is_named(name, length, names[i], sizes[i]):
                return None  # sent twice
        names[count], sizes[count] = name, length
        count += 1
        p += 1
        while p < line_end and p[0] == c' ':
            p += 1
        value = p
        while p < line_end and IN_VALUE[<unsigned char>p[0]]:
            p += 1
        if p != line_end or (p > value and (p - 1)[0] == c' '):
            return None
        if length == 4 and is_named(name, length, b"host", 4):
            host = p > value
        elif length == 14 and is_named(name, length, b"content-length", 14):
            if p == value or p - value > 9:
                return None
            body = 0
            while value < p:
                if not c'0' <= value[0] <= c'9':
                    return None
                body = body * 10 + value[0] - c'0'
                value += 1
            value = name + length + 1
            while value[0] == c' ':
                value += 1
        elif length == 10 and is_named(name, length, b"connection", 10):
            if not is_named(value, p - value, b"keep-alive", 10):
                return None
        elif (
            is_named(name, length, b"transfer-encoding", 17)
            or is_named(name, length, b"upgrade", 7)
            or is_named(name, length, b"expect", 6)
            or is_named(name, length, b"content-encoding", 16)
            or is_named(name, length, b"proxy-connection", 16)
            or (length > 13 and strncasecmp(name, b"sec-websocket", 13) == 0)
        ):
            return None
        total += length + (p - value)
        headers.append((name_of(PyBytes_FromStringAndSize(name, length)), PyUnicode_DecodeLatin1(value, p - value, NULL)))
        at = line_end + 2
    if not host or body < 0 or end - at != body:
        return None
    return PyUnicode_DecodeLatin1(path, size, NULL), headers, total, PyBytes_FromStringAndSize(at, body)
