# cython: language_level=3, boundscheck=False, wraparound=False
"""The compiled path of plain events, which `gateway.proxy.event_pass` describes.

It follows `UpstreamConnection.buffer_updated`, `Relay._on_data`, `EventStream.feed` and `CallerConnection.write` for the one
case that nearly every read of a stream is, and leaves the same values in the same attributes.
"""

import sys

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.string cimport memchr, memcmp, memcpy

from gateway.chat import tokens
from gateway.chat._plain cimport is_plain

cdef extern from "<string.h>" nogil:
    void* memmem(const void*, size_t, const void*, size_t)

cdef extern from *:
    const char* SOURCE_DIGEST  # a macro that the build defines

SOURCE = SOURCE_DIGEST.decode()
"""The digest of the files that this was built from."""

cdef object BODY
cdef object BUFFER
cdef const char* READ
cdef Py_ssize_t LONGEST
cdef Py_ssize_t LARGE = tokens.LARGE
cdef const char* DIGITS = b"0123456789abcdef"


def use(buffer, Py_ssize_t longest, body):
    """Set the buffer that every read goes into, how long a read may be that is taken, and the state of a call in its body."""
    global BODY, BUFFER, READ, LONGEST
    BODY = body
    BUFFER = buffer
    READ = <const char*>PyMemoryView_GET_BUFFER(buffer).buf
    LONGEST = longest


cdef Py_ssize_t chunk_size(const char** at, const char* end) noexcept nogil:
    """Return the size of the whole chunk at `at`, and move `at` to its data. Return 0 where there is none."""
    cdef const char* begin = at[0]
    cdef const char* p = begin
    cdef Py_ssize_t size = 0
    while p < end and p - begin < 7:
        if c'0' <= p[0] <= c'9':
            size = size * 16 + p[0] - c'0'
        elif c'a' <= p[0] <= c'f':
            size = size * 16 + p[0] - c'a' + 10
        elif c'A' <= p[0] <= c'F':
            size = size * 16 + p[0] - c'A' + 10
        else:
            break
        p += 1
    if p == begin or end - p < size + 4 or p[0] != c'\r' or p[1] != c'\n':
        return 0
    p += 2
    at[0] = p
    return size if p[size] == c'\r' and p[size + 1] == c'\n' else 0


cdef bytes one_chunk(const char* at, const char* end, Py_ssize_t size):
    """Return whole chunks, whose data is `size` bytes, as one chunk."""
    cdef Py_ssize_t digits = 1, length
    while size >> (4 * digits):
        digits += 1
    cdef bytes chunk = PyBytes_FromStringAndSize(NULL, digits + size + 4)
    cdef char* to = PyBytes_AS_STRING(chunk)
    while digits:
        digits -= 1
        to[0] = DIGITS[(size >> (4 * digits)) & 15]
        to += 1
    memcpy(to, b"\r\n", 2)
    to += 2
    while at < end:
        length = chunk_size(&at, end)
        memcpy(to, at, length)
        to += length
        at += length + 2
    memcpy(to, b"\r\n", 2)
    return chunk


cdef class EventPass:
    """The part of an upstream's connection that the transport calls first. `gateway.proxy.event_pass` has the same in Python."""

    cdef bint _in_chunk, _line_ended, _ready
    cdef tuple _secrets
    cdef object _relay, _caller, _exchange, _events, _output, _ended, _now, _write
    cdef Py_ssize_t _received, _max_received, _count, _bytes, _output_events, _output_bytes, _next_sample, _shortest
    cdef double _longest_gap

    def __cinit__(self, *args, **kwargs):
        self._in_chunk = True

    def on_chunk_header(self):
        """Note that the parser is within a chunk. Called by the parser."""
        self._in_chunk = True

    def on_chunk_complete(self):
        """Note that the parser is behind a chunk. Called by the parser."""
        self._in_chunk = False

    def begin_pass(self, relay):
        """Pass the plain events of a relay on from now on, if nothing else must see them."""
        if relay.hooks is not None or not relay._caller.chunked or relay.events._max_event_bytes < LONGEST:
            return
        self._relay, self._caller, self._exchange, self._events = relay, relay._caller, relay._exchange, relay.events
        self._output, self._ended = relay.events.output, relay.ended
        # A credential is visible ASCII, see `Channel`: it is in one event, and mostly between two quotes.
        self._secrets, self._shortest = relay._secrets.secrets, min(relay._secrets.shortest, sys.maxsize)
        self._now, self._write = relay._loop.time, relay._caller._transport.write
        self._max_received = relay.channel.max_response_bytes
        self._ready = False

    def end_pass(self):
        """Pass nothing on any more."""
        self._relay = self._caller = self._exchange = self._events = self._output = None
        self._ended = self._secrets = self._now = self._write = None

    def get_buffer(self, sizehint):
        return BUFFER

    def buffer_updated(self, Py_ssize_t size):
        cdef const char* data = READ
        if self._relay is not None and self._line_ended and not self._in_chunk and 0 < size <= LONGEST:
            if (self._ready or self._prepare()) and self._pass_on(data, data + size):
                return
        self._ready = False
        self._line_ended = size > 0 and data[size - 1] == c'\n'
        self.receive(size)

    cdef bint _prepare(self):
        """Read the state that only reads which are not taken change. Return whether plain events may pass in it."""
        events = self._events
        if self._state is not BODY or self._pieces or events._pending or events._unusual or events.concluded:
            return False
        self._received, self._count, self._bytes = self._relay._received, events.events, self._exchange.bytes
        self._longest_gap = self._exchange.longest_gap_s
        self._read_output()
        self._ready = True
        return True

    cdef bint _read_output(self):
        output = self._output
        self._output_events, self._output_bytes = output.events, output.bytes
        self._next_sample = output._next

    cdef bint _pass_on(self, const char* data, const char* end):
        cdef const char* at = data
        cdef Py_ssize_t size, body = 0, events = 0, longest = 0
        cdef bytes secret
        while at < end:
            size = chunk_size(&at, end)
            if not is_plain(at, at + size, &longest):
                return False
            at += size + 2
            body += size
            events += 1
        for secret in self._secrets if longest >= self._shortest else ():
            if memmem(data, end - data, PyBytes_AS_STRING(secret), PyBytes_GET_SIZE(secret)) != NULL:
                return False
        if self._received + body > self._max_received or self._caller.gone or self._ended.done():
            return False
        chunk, exchange = one_chunk(data, end, body), self._exchange
        self._count_events(chunk, body, events)
        self._note_time()
        self._write(chunk)
        self._bytes += body
        exchange.bytes = self._bytes
        exchange.events = self._count
        return True

    cdef bint _count_events(self, bytes chunk, Py_ssize_t body, Py_ssize_t events):
        """Count them as `EventStream.feed` and `OutputCounter.add` do."""
        self._received += body
        self._relay._received = self._received
        self._count += events
        self._events.events = self._count
        if body > LARGE or self._output_events + events > self._next_sample:
            self._output.add(chunk[len(chunk) - body - 2 : len(chunk) - 2], events)
            self._read_output()
        else:
            self._output_events += events
            self._output_bytes += body
            self._output.events = self._output_events
            self._output.bytes = self._output_bytes

    cdef bint _note_time(self):
        relay = self._relay
        now = self._now()
        cdef double gap = <double>now - <double>relay._last_read_at
        relay._last_read_at = now
        if gap > self._longest_gap:
            self._exchange.longest_gap_s = self._longest_gap = gap
