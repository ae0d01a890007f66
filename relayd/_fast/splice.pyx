# cython: language_level=3
"""Where a value stands in a JSON object, so that it alone can be replaced."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcmp


cdef Py_ssize_t past_string(const char* text, Py_ssize_t i, Py_ssize_t size) noexcept nogil:
    """Return the offset past the string whose opening quote is at `i`."""
    i += 1
    while i < size and text[i] != b'"':
        i += 2 if text[i] == b'\\' else 1
    return min(i + 1, size)


cdef Py_ssize_t past_spaces(const char* text, Py_ssize_t i, Py_ssize_t size) noexcept nogil:
    while i < size and (text[i] == b' ' or text[i] == b'\t' or text[i] == b'\n' or text[i] == b'\r'):
        i += 1
    return i


cdef Py_ssize_t past_value(const char* text, Py_ssize_t i, Py_ssize_t size) noexcept nogil:
    """Return the offset past the value that begins at `i`."""
    cdef int depth = 0
    while i < size:
        if text[i] == b'"':
            i = past_string(text, i, size)
            if depth == 0:
                return i
            continue
        if text[i] == b'{' or text[i] == b'[':
            depth += 1
        elif text[i] == b'}' or text[i] == b']':
            if depth == 0:
                return i                # of the object around it: a bare number or word ended
            depth -= 1
            if depth == 0:
                return i + 1
        elif depth == 0 and (text[i] == b',' or text[i] <= 32):
            return i
        i += 1
    return size


cpdef object find_value(bytes document, bytes key):
    """Return (start, end) of the value of `key` at the top level of `document`, or None."""
    cdef:
        const char* text = PyBytes_AS_STRING(document)
        Py_ssize_t size = PyBytes_GET_SIZE(document), key_size = PyBytes_GET_SIZE(key)
        Py_ssize_t i = past_spaces(text, 0, size), name, name_end, end
        object found = None

    if i == size or text[i] != b'{':
        return None
    i += 1
    while True:
        i = past_spaces(text, i, size)
        if i >= size or text[i] != b'"':
            return found
        name = i + 1
        i = past_string(text, i, size)
        name_end = i - 1
        i = past_spaces(text, i, size)
        if i >= size or text[i] != b':':
            return found
        i = past_spaces(text, i + 1, size)
        end = past_value(text, i, size)
        if name_end - name == key_size and memcmp(text + name, PyBytes_AS_STRING(key), key_size) == 0:
            found = (i, end)
        i = past_spaces(text, end, size)
        if i >= size or text[i] != b',':
            return found
        i += 1
