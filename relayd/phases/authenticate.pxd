from libc.stdint cimport int64_t

from relayd.auth.authenticator cimport Authenticator
from relayd.limits.addresses cimport Addresses
from relayd.records cimport Exchange


cpdef object authenticate(
    Exchange exchange, Authenticator authenticator, Addresses addresses, int64_t now_ns, double now_wall)
