from relayd.records cimport Exchange


cpdef object admit(Exchange exchange, object settings, object addresses)
