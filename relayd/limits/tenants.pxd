# relayd/limits/tenants.pxd -- the C types of tenants.py: docs/decisions/004.

cimport cython
from libc.stdint cimport int64_t

from relayd._fast.bucket cimport Buckets
from relayd._fast.head cimport rate_lines
from relayd.limits.grants cimport Grant
from relayd.limits.scopes cimport Scope, Tenant


cdef class Limiter:
    cdef readonly double since_wall
    cdef object tables
    cdef readonly dict tiers
    cdef readonly Scope default
    cdef bytes _secret
    cdef readonly dict known

    cpdef Scope tier(self, str name)

    @cython.locals(tenant=Tenant, scope=Scope, grant=Grant)
    cpdef object admit(self, str tenant_name, str tier_name, int64_t now_ns, double now_wall)

    # `tokens` is an object: what a client asks for may be larger than an int64.
    @cython.locals(wanted=int64_t, taken=bint, of_model=Grant)
    cpdef object reserve(self, Grant grant, str model, object tokens, int64_t now_ns, double now_wall)

    @cython.locals(used=int64_t, of_model=Grant)
    cpdef object settle(self, Grant grant, object used_tokens, int64_t now_ns, double now_wall)
    cpdef object refund(self, Grant grant, int64_t now_ns, double now_wall)

    @cython.locals(scope=Scope)
    cdef Grant _model_grant(self, Grant grant, str model)

    @cython.locals(scope=Scope, of_model=Scope, tenant=Tenant, requests=Buckets, tokens=Buckets)
    cpdef bytes lines(self, Grant grant, int64_t now_ns)
    cdef Tenant _tenant(self, str name)


@cython.locals(left=int64_t)
cdef Buckets tighter(Buckets one, Buckets other, Tenant tenant, int64_t now_ns)


@cython.locals(left=int64_t, full_in_ns=int64_t)
cdef bytes lines_of_rate(bytes what, Buckets buckets, Tenant tenant, int64_t now_ns)
