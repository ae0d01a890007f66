# relayd/limits/grants.pxd -- the C types of grants.py: docs/decisions/004.

cimport cython
from libc.stdint cimport int64_t

from relayd.limits.scopes cimport Scope, Tenant


cdef int64_t NO_WINDOW


cdef class Grant:
    cdef readonly Scope scope
    cdef readonly Tenant tenant
    cdef public Grant model
    cdef public bint reserved
    cdef public bint ended
    cdef readonly bint has_request
    cdef readonly bint has_slot
    cdef readonly int64_t request_window
    cdef readonly int64_t tokens
    cdef readonly int64_t quota
    cdef readonly int64_t quota_window

    @cython.locals(scope=Scope, tenant=Tenant, window=int64_t)
    cpdef bint take_request(self, int64_t now_ns, double now_wall) except -1

    @cython.locals(scope=Scope, tenant=Tenant, cost=int64_t, window=int64_t)
    cpdef bint take_tokens(self, int64_t tokens, int64_t now_ns, double now_wall) except -1

    @cython.locals(scope=Scope, tenant=Tenant)
    cpdef object give_back(self)
    cpdef object give_back_slot(self)

    @cython.locals(scope=Scope, tenant=Tenant)
    cpdef object give_back_tokens(self)

    @cython.locals(scope=Scope, tenant=Tenant)
    cpdef object settle_tokens(self, int64_t used, int64_t now_ns, double now_wall)
