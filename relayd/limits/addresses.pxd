# relayd/limits/addresses.pxd -- the C types of addresses.py: docs/decisions/004.

from libc.stdint cimport int64_t

from relayd._fast.bucket cimport Buckets


cdef class Addresses:
    cdef readonly list trusted
    cdef readonly bint trusts_unix
    cdef readonly Buckets buckets
    cdef readonly Buckets failures
    cdef readonly bint needed
    cdef readonly object key_of
    cdef readonly object trusts

    cpdef str origin(self, str peer, bytes forwarded_for)
    cpdef object wait_ns(self, str address, int64_t now_ns)
    cpdef object note_failure(self, str address, int64_t now_ns)
    cpdef object failures_wait_ns(self, str address, int64_t now_ns)
