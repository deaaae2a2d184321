cimport cython

from gateway.chat.events cimport EventStream
from gateway.chat.usage cimport ReportedUsage
from gateway.proxy.relay cimport Relay

@cython.locals(last=object)
cpdef meter(attempt, ReportedUsage reported, estimate_output, body, candidate)
@cython.locals(events=EventStream)
cpdef meter_stream(attempt, Relay relay, body, candidate, by_time)
cpdef bint is_complete(Relay relay, reason)
