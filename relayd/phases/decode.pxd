from relayd.records cimport Exchange


cpdef bint has_seen_enough(Exchange exchange) except -1
cpdef object decode(Exchange exchange, Py_ssize_t max_body)
cpdef object decode_json(Exchange exchange, Py_ssize_t max_body)
