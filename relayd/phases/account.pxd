from relayd._fast.leg cimport Leg
from relayd.records cimport Exchange, Fleet


cdef class Books:
    cdef public object metrics
    cdef public Fleet fleet
    cdef public object log
    cdef public bytes pseudonym

    cpdef object began(self)
    cpdef object ended(self, Exchange exchange, int code, str outcome, Leg leg)
    cdef object _write(self, Exchange exchange, int code, str outcome, Leg leg)
