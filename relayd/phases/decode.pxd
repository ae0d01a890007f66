from relayd.records cimport Exchange, Fleet


cpdef bint has_seen_enough(Exchange exchange, bint whole_forms) except -1
cpdef object decode(Exchange exchange, Py_ssize_t max_body)
cpdef object decode_json(Exchange exchange, Py_ssize_t max_body)
cpdef bint is_held_to_model(Exchange exchange) except -1
cpdef object permit(Exchange exchange, Fleet fleet)
cpdef object rename_model(Exchange exchange, str name, Py_ssize_t max_body)
