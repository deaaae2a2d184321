"""Plain events, as `gateway.chat.sse` defines them, for the compiled modules."""

from libc.string cimport memchr, memcmp


cdef inline bint is_plain(const char* at, const char* end, Py_ssize_t* longest) noexcept nogil:
    """Return whether the data is one plain event whose line ends are line feeds.

    `longest` is set to the most bytes without a quote, if that is more.
    """
    cdef Py_ssize_t left = end - at, name
    cdef const char* quote
    cdef int choices = 0
    if left < 9 or memcmp(at, b"data: {", 7) != 0 or (end - 1)[0] != c'\n' or memchr(at, c'\n', left) != end - 2:
        return False
    if memchr(at, c'\r', left) != NULL:
        return False
    while True:
        quote = <const char*>memchr(at, c'"', end - at)
        longest[0] = max(longest[0], (quote if quote != NULL else end) - at)
        if quote == NULL:
            return choices == 1
        at = quote + 1
        left = end - at
        name = 0
        if at[0] == c'c':
            if left >= 10 and memcmp(at, b'choices":[', 10) == 0:
                if left < 11 or at[10] != c'{':
                    return False
                choices += 1
        elif at[0] == c'f':
            if left >= 14 and memcmp(at, b'finish_reason"', 14) == 0:
                name = 14
        elif at[0] == c'u' or at[0] == c'e':
            if left >= 6 and (memcmp(at, b'usage"', 6) == 0 or memcmp(at, b'error"', 6) == 0):
                name = 6
        if name and (left < name + 5 or memcmp(at + name, b":null", 5) != 0):
            return False
