from libc.stdint cimport int64_t

from relayd.records cimport Exchange


cpdef object authenticate(
    Exchange exchange, object authenticator, object addresses, int64_t now_ns, double now_wall)
