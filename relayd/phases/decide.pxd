from libc.stdint cimport int64_t

from relayd.records cimport Exchange, Fleet


cpdef object decide(Exchange exchange, Fleet fleet, object policy, int64_t now_ns)
