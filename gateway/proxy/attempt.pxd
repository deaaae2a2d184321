from gateway.proxy.caller cimport CallerConnection

cdef class UpstreamCall:
    cdef public object attempt, body, breaker, candidate, chain, dialect, events, exchange, gathering, kept_ids, keeper, pace, route
    cdef public object upstream, wire
    cdef public bint streamed
    cdef public double began, deadline
    cdef public list message, parts
    cdef public CallerConnection caller
