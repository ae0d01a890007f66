from relayd.limits.addresses cimport Addresses
from relayd.records cimport Exchange


cpdef object admit(Exchange exchange, object settings, Addresses addresses)
