# relayd/limits/scopes.pxd -- the C types of scopes.py: docs/decisions/004.

from libc.stdint cimport int64_t, uint64_t

from relayd._fast.bucket cimport Buckets, Counts, Quotas
from relayd.limits.windows cimport end_of, number_of


cdef class Tenant:
    cdef readonly str name
    cdef readonly uint64_t low
    cdef readonly uint64_t high
    cdef public Scope tier
    cdef public int64_t seen_ns


cdef class Quota:
    cdef readonly Quotas table
    cdef readonly str window
    cdef readonly int64_t most

    cpdef int64_t take(self, Tenant tenant, int64_t units, double now_wall) except? -1
    cpdef object charge(self, Tenant tenant, int64_t units, double now_wall)


cdef class Scope:
    cdef readonly str name
    cdef readonly str model
    cdef readonly object allowed
    cdef readonly Buckets requests
    cdef readonly Buckets tokens
    cdef readonly int64_t concurrency
    cdef readonly Counts slots
    cdef readonly Quota quota
    cdef readonly Quota quota_requests
    cdef readonly dict models
