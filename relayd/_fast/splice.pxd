# relayd/_fast/splice.pxd -- where a value stands in a JSON object, so that it alone can be replaced.
#
# A body that has to be changed is not written anew: key order, number text and unknown fields are the
# client's, and prefix caches depend on them.  The document must have been accepted by a real decoder
# before; this only finds places in it.

# The (start, end) offsets of the value of `key` at the top level of the object `document`, the last one
# if the key is repeated, or None.  A key spelled with escapes is not found.
cpdef object find_value(bytes document, bytes key)

# How many top-level keys of `document` some reader may take for `key`: in any case of ASCII letters, or
# spelled with escapes.
cpdef Py_ssize_t count_names(bytes document, bytes key) noexcept
