cdef class ReportedUsage:
    cdef public object prompt, completion, total, of_prompt, last, units
    cdef public bint prompt_final, completion_final, total_final
    cdef public str service_tier
    cpdef add(self, counts, bint final)
    cpdef set_final(self)
    cpdef usage(self, estimate_prompt, estimate_completion)
    cdef _usage(self, prompt, completion, str source)
