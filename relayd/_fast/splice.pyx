# cython: language_level=3
"""Where a value stands in a JSON object, so that it alone can be replaced."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp

cdef extern from "<strings.h>" nogil:
    int strncasecmp(const char* one, const char* other, size_t size)


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


cdef struct Member:
    Py_ssize_t name             # offsets of the text between the key's quotes
    Py_ssize_t name_end
    Py_ssize_t value
    Py_ssize_t end


cdef bint next_member(const char* text, Py_ssize_t size, Member* member) noexcept nogil:
    """Go on to the next key of the outermost object; at first, `end` is 0.  False: there is none."""
    cdef Py_ssize_t i = past_spaces(text, member.end, size)
    if i >= size or text[i] != (123 if member.end == 0 else 44):        # { or ,
        return False
    i = past_spaces(text, i + 1, size)
    if i >= size or text[i] != b'"':
        return False
    member.name = i + 1
    i = past_string(text, i, size)
    member.name_end = i - 1
    i = past_spaces(text, i, size)
    if i >= size or text[i] != b':':
        return False
    member.value = past_spaces(text, i + 1, size)
    member.end = past_value(text, member.value, size)
    return True


cpdef object find_value(bytes document, bytes key):
    """Return (start, end) of the value of `key` at the top level of `document`, or None."""
    cdef:
        const char* text = PyBytes_AS_STRING(document)
        Py_ssize_t size = PyBytes_GET_SIZE(document), key_size = PyBytes_GET_SIZE(key)
        Member member
        object found = None

    member.end = 0
    while next_member(text, size, &member):
        if (member.name_end - member.name == key_size
                and memcmp(text + member.name, PyBytes_AS_STRING(key), key_size) == 0):
            found = (member.value, member.end)
    return found


cpdef Py_ssize_t count_names(bytes document, bytes key) noexcept:
    """Return how many keys at the top level of `document` somebody may read as `key`."""
    cdef:
        const char* text = PyBytes_AS_STRING(document)
        Py_ssize_t size = PyBytes_GET_SIZE(document), key_size = PyBytes_GET_SIZE(key)
        Py_ssize_t name_size, count = 0
        Member member

    member.end = 0
    while next_member(text, size, &member):
        name_size = member.name_end - member.name
        if memchr(text + member.name, b'\\', name_size) is not NULL:
            count += 1
        elif name_size == key_size and strncasecmp(
                text + member.name, PyBytes_AS_STRING(key), key_size) == 0:
            count += 1
    return count
