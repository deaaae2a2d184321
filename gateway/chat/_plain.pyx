# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled search for plain events, which `gateway.chat.sse` describes."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memchr

cdef extern from *:
    const char* SOURCE_DIGEST  # a macro that the build defines

SOURCE = SOURCE_DIGEST.decode()
"""The digest of the files that this was built from."""


def plain_events(bytes data not None):
    """Return where the plain events end that the data begins with, and how many there are. The data has no carriage return."""
    cdef const char* begin = PyBytes_AS_STRING(data)
    cdef const char* end = begin + PyBytes_GET_SIZE(data)
    cdef const char* at = begin
    cdef const char* line_end
    cdef Py_ssize_t events = 0, longest = 0
    while True:
        line_end = <const char*>memchr(at, c'\n', end - at)
        if line_end == NULL or end - line_end < 2 or not is_plain(at, line_end + 2, &longest):
            return at - begin, events
        at = line_end + 2
        events += 1
