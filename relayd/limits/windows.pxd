# relayd/limits/windows.pxd -- the C types of windows.py: docs/decisions/004.

cimport cython
from libc.stdint cimport int64_t


cdef int64_t HOUR_S
cdef int64_t DAY_S
cdef double LAST_S


@cython.locals(second=int64_t, day=int64_t)
cpdef int64_t number_of(str window, double wall_s) except -1

cpdef double end_of(str window, int64_t number) except -1
