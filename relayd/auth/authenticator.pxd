# relayd/auth/authenticator.pxd -- the C types of authenticator.py: docs/decisions/004.


cdef class Authenticator:
    cdef public long long hits
    cdef public long long misses
    cdef readonly dict refused
    cdef readonly object source
    cdef readonly list warnings
    cdef object _fetch
    cdef object _clock
    cdef dict _granted
    cdef object _rules
    cdef object _ring_of_settings
    cdef object _ring
    cdef object _api_keys

    cpdef object check(self, bytes authorization, bytes api_key, double now)
    cpdef bint knows(self, bytes authorization, bytes api_key, double now) except -1


cdef bytes digest_of(bytes header, bint is_authorization)
