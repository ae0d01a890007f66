# relayd/auth/authenticator.pxd -- the C types of authenticator.py: docs/decisions/004.

cimport cython

from relayd.records cimport Client


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

    @cython.locals(digest=bytes, header=bytes)
    cpdef object check(self, bytes authorization, bytes api_key, double now, Client client=*)
    cpdef bint knows(self, bytes authorization, bytes api_key, double now) except -1


cdef bint is_same(Client client, bytes header, bint is_authorization) except -1
cdef object note_last(Client client, bytes header, bint is_authorization, bytes digest)
cdef bytes digest_of(bytes header, bint is_authorization)
