from libc.stdint cimport int64_t

from relayd._fast.meters cimport Cost
from relayd.limits.tenants cimport Limiter
from relayd.records cimport Exchange


cpdef object limit(Exchange exchange, Limiter limiter, int64_t now_ns, double now_wall)
cpdef object reserve(Exchange exchange, Limiter limiter, int64_t now_ns, double now_wall)
cpdef object settle(Exchange exchange, Cost cost, Limiter limiter, int64_t now_ns, double now_wall)
