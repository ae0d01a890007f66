# relayd/telemetry/access_log.pxd -- the C types of access_log.py: docs/decisions/004.

cimport cython


cdef class LogSink:
    cdef readonly str name
    cdef readonly str path
    cdef readonly int descriptor
    cdef readonly Py_ssize_t room
    cdef readonly object queue
    cdef Py_ssize_t no_room
    cdef Py_ssize_t unwritten
    cdef bint torn
    cdef bint failing
    cdef bint awake
    cdef object wake
    cdef object hurry
    cdef readonly object thread

    cpdef object add(self, bytes line)


cdef class AccessLog:
    cdef readonly list sinks
    cdef object encode

    @cython.locals(data=bytes, sink=LogSink)
    cpdef object write(self, object line)
