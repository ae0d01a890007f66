# cython: language_level=3
"""Where server-sent events end, which of them end the stream, and what the answer cost.

An event is one or more lines, then an empty line.  A line ends in LF, CR or CRLF (HTML Living
Standard, "Server-sent events"), and a network read may cut any of these in half.  So between reads
EventScan keeps a handful of facts and the first bytes of the line being read: enough to tell
`data: [DONE]`, `event: message_stop` and an error object from everything else, without decoding JSON.

Usage is found by its key.  Inside a JSON string a quote is always escaped, so the bytes `"usage"` or
`"usageMetadata"`, not preceded by a backslash and followed by a colon and a brace, can only be a key: no
text that a model writes can forge it.  The object behind it is read, byte by byte as it comes, for
integers under the few names that the dialects use, and believed once it is whole.  `"usage": null`,
which some servers put on every chunk, is neither zero nor an error.

Owner: the Leg embeds one of each per response.  The classes at the end are for tests and tools.
"""

cimport cython
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "debug.h" nogil:
    void RELAYD_CHECK(bint condition)

cdef extern from "<string.h>" nogil:
    void* memmem(const void* haystack, size_t haystack_size, const void* needle, size_t needle_size)


# --- events -----------------------------------------------------------------------------------------

cdef void scan_reset(EventScan* scan, int terminator) noexcept nogil:
    scan.events = 0
    scan.comments = 0
    scan.in_event = False
    scan.in_line = False
    scan.after_cr = False
    scan.has_field = False
    scan.has_data = False
    scan.is_terminator = False
    scan.is_error = False
    scan.terminated = False
    scan.errored = False
    scan.terminator = terminator
    scan.kept = 0


cdef bint scan_at_boundary(const EventScan* scan) noexcept nogil:
    return not scan.in_event and not scan.in_line


@cython.overflowcheck(False)            # the check is not made for pointers
cdef inline Py_ssize_t distance(const char* start, const char* end) noexcept nogil:
    return end - start


cdef inline bint starts_with(
    const char* text, int size, const char* prefix, int prefix_size
) noexcept nogil:
    return size >= prefix_size and memcmp(text, prefix, prefix_size) == 0


cdef inline int without_spaces(char* out, const char* text, int size) noexcept nogil:
    """Copy `text` without its spaces: JSON is written both with and without them."""
    cdef int i, n = 0
    for i in range(size):
        if text[i] != b' ' and text[i] != b'\t':
            out[n] = text[i]
            n += 1
    return n


cdef bint is_last_type(int terminator, const char* name, int size) noexcept nogil:
    """True if `name` is the type of event that ends a stream of this kind."""
    if terminator == TERMINATOR_MESSAGE_STOP:
        return starts_with(name, size, b"message_stop", 12)
    if terminator == TERMINATOR_RESPONSE:
        return (
            starts_with(name, size, b"response.completed", 18)
            or starts_with(name, size, b"response.incomplete", 19)
            or starts_with(name, size, b"response.failed", 15)
        )
    return False


cdef bint may_say_what_it_is(const char* value, int size) noexcept nogil:
    """True if the first key of a JSON object begins as "error" or "type" do: hardly any event of text."""
    cdef int i = 1
    if size < 3 or value[0] != b'{':
        return False
    while i < size - 1 and (value[i] == b' ' or value[i] == b'\t'):
        i += 1
    return value[i] == b'"' and (value[i + 1] == b'e' or value[i + 1] == b't')


cdef void read_data_line(EventScan* scan, const char* value, int size) noexcept nogil:
    cdef char[LINE_KEPT] packed
    cdef int n

    if scan.has_data:
        return                      # only the first line of a multi-line value says what it is
    scan.has_data = True
    if starts_with(value, size, b"[DONE]", 6):
        scan.is_terminator |= scan.terminator == TERMINATOR_DONE
        return
    if not may_say_what_it_is(value, size):
        return
    n = without_spaces(packed, value, size)
    if starts_with(packed, n, b'{"error":', 9):
        # An "error" of null, "" or {} beside real content is not one.
        scan.is_error |= n > 10 and packed[9] == b'{' and packed[10] != b'}' or (
            n > 10 and packed[9] == b'"' and packed[10] != b'"')
    elif starts_with(packed, n, b'{"type":"', 9):
        scan.is_error |= starts_with(packed + 9, n - 9, b'error"', 6)
        scan.is_terminator |= is_last_type(scan.terminator, packed + 9, n - 9)


cdef void read_line(EventScan* scan) noexcept nogil:
    """Note what the line that just ended says about its event."""
    cdef const char* line = scan.line
    cdef const char* value
    cdef int size, kept = scan.kept

    if scan.events == 0 and starts_with(line, kept, b"\xef\xbb\xbf", 3):
        line += 3                   # a byte order mark may open the stream, and means nothing
        kept -= 3
    if starts_with(line, kept, b"data:", 5):
        scan.has_field = True
        value = line + 5
        size = kept - 5
        if size > 0 and value[0] == b' ':
            value += 1
            size -= 1
        read_data_line(scan, value, size)
    elif starts_with(line, kept, b"event:", 6):
        scan.has_field = True
        value = line + 6
        size = kept - 6
        if size > 0 and value[0] == b' ':
            value += 1
            size -= 1
        scan.is_error |= size == 5 and memcmp(value, b"error", 5) == 0
        scan.is_terminator |= is_last_type(scan.terminator, value, size)


cdef void end_event(EventScan* scan) noexcept nogil:
    scan.events += 1
    if not scan.has_field:
        scan.comments += 1
    scan.terminated |= scan.is_terminator
    scan.errored |= scan.is_error
    scan.in_event = False
    scan.has_field = False
    scan.has_data = False
    scan.is_terminator = False
    scan.is_error = False


cdef void scan_finish(EventScan* scan) noexcept nogil:
    if scan.in_line:
        read_line(scan)
        scan.in_line = False
        scan.in_event = True
        scan.kept = 0
    if scan.in_event:
        end_event(scan)


cdef inline Py_ssize_t scan_until(
    EventScan* scan, const char* data, Py_ssize_t size, bint only_one
) noexcept nogil:
    cdef:
        Py_ssize_t i = 0, stop, room, end = 0
        const char* found

    while i < size:
        if scan.after_cr and data[i] == b'\n':
            scan.after_cr = False
            if i > 0 and end == i:
                end = i + 1             # this LF closes the event that just ended
            i += 1
            if only_one and end == i:
                return end
            continue
        if only_one and end:
            return end

        found = <const char*> memchr(data + i, b'\n', size - i)
        stop = size if found is NULL else distance(data, found)
        found = <const char*> memchr(data + i, b'\r', stop - i)
        if found is not NULL:
            stop = distance(data, found)

        if stop > i:
            scan.in_line = True
            scan.after_cr = False
            room = LINE_KEPT - scan.kept
            if room > stop - i:
                room = stop - i
            memcpy(scan.line + scan.kept, data + i, room)
            scan.kept += <int> room
        if stop == size:
            break                       # the line goes on in the next read

        scan.after_cr = data[stop] == b'\r'
        if scan.in_line:                # a line ends
            read_line(scan)
            scan.in_line = False
            scan.kept = 0
            scan.in_event = True
        elif scan.in_event:             # an empty line ends the event
            end_event(scan)
            end = stop + 1
            if only_one and not scan.after_cr:
                return end
        # else: an empty line between events, which means nothing
        i = stop + 1

    RELAYD_CHECK(scan.kept <= LINE_KEPT and end <= size)
    return end


cdef Py_ssize_t scan_feed(EventScan* scan, const char* data, Py_ssize_t size) noexcept nogil:
    return scan_until(scan, data, size, False)


cdef Py_ssize_t scan_feed_one(EventScan* scan, const char* data, Py_ssize_t size) noexcept nogil:
    return scan_until(scan, data, size, True)


# --- usage ------------------------------------------------------------------------------------------

cdef enum:
    SEEK_KEY = 0            # looking for the beginning of a key
    IN_KEY = 1              # behind it: is this all of the name, or a longer one?
    SEEK_COLON = 2          # behind the key
    SEEK_OBJECT = 3         # behind the colon
    IN_OBJECT = 4           # between the braces

cdef enum:
    KEY_SIZE = 6
    TAIL_SIZE = 9

cdef const char* KEY = b'"usage'
cdef const char* TAIL = b'Metadata"'     # what the longer name goes on with

# Counts above this are nonsense (a context of a trillion tokens) and could overflow sums.
cdef enum:
    MAX_COUNT_DIGITS = 12


cdef void usage_nothing(Usage* usage) noexcept nogil:
    usage.input = -1
    usage.output = -1
    usage.cached_input = -1
    usage.cache_write = -1
    usage.reasoning = -1
    usage.thoughts = -1
    usage.refused = False


cdef int64_t usage_output(const Usage* usage) noexcept nogil:
    if usage.thoughts < 0:
        return usage.output
    return usage.thoughts + max(usage.output, 0)


cdef int64_t usage_reasoning(const Usage* usage) noexcept nogil:
    return usage.reasoning if usage.thoughts < 0 else usage.thoughts


cdef void usage_reset(UsageScan* scan) noexcept nogil:
    usage_nothing(&scan.usage)
    scan.objects = 0
    scan.state = SEEK_KEY
    scan.matched = 0
    scan.depth = 0
    scan.previous = 0


cdef inline bint is_name(const char* key, int size, const char* name, int name_size) noexcept nogil:
    return size == name_size and memcmp(key, name, name_size) == 0


cdef int64_t* place_of(Usage* usage, const char* key, int size) noexcept nogil:
    """Return where the count under this name belongs, or NULL."""
    if (is_name(key, size, b"prompt_tokens", 13) or is_name(key, size, b"input_tokens", 12)
            or is_name(key, size, b"promptTokenCount", 16)):
        return &usage.input
    if (is_name(key, size, b"completion_tokens", 17) or is_name(key, size, b"output_tokens", 13)
            or is_name(key, size, b"candidatesTokenCount", 20)):
        return &usage.output
    if (is_name(key, size, b"cached_tokens", 13) or is_name(key, size, b"cache_read_input_tokens", 23)
            or is_name(key, size, b"cachedContentTokenCount", 23)):
        return &usage.cached_input
    if is_name(key, size, b"cache_creation_input_tokens", 27):
        return &usage.cache_write
    if is_name(key, size, b"reasoning_tokens", 16):
        return &usage.reasoning
    if is_name(key, size, b"thoughtsTokenCount", 18):
        return &usage.thoughts
    return NULL


cdef inline bint is_space(char c) noexcept nogil:
    return c == b' ' or c == b'\t' or c == b'\n' or c == b'\r'


cdef inline bint is_digit(char c) noexcept nogil:
    return 48 <= c <= 57


cdef void begin_object(UsageScan* scan) noexcept nogil:
    usage_nothing(&scan.pending)
    scan.state = IN_OBJECT
    scan.size = 0
    scan.depth = 0
    scan.lists = 0
    scan.in_string = False
    scan.escaped = False
    scan.has_key = False
    scan.has_colon = False
    scan.in_number = False


cdef void end_object(UsageScan* scan) noexcept nogil:
    """Believe what the object said, now that it is whole."""
    scan.state = SEEK_KEY
    scan.objects += 1
    if scan.pending.input >= 0:
        scan.usage.input = scan.pending.input
    if scan.pending.output >= 0:
        scan.usage.output = scan.pending.output
    if scan.pending.cached_input >= 0:
        scan.usage.cached_input = scan.pending.cached_input
    if scan.pending.cache_write >= 0:
        scan.usage.cache_write = scan.pending.cache_write
    if scan.pending.reasoning >= 0:
        scan.usage.reasoning = scan.pending.reasoning
    if scan.pending.thoughts >= 0:
        scan.usage.thoughts = scan.pending.thoughts
    scan.usage.refused |= scan.pending.refused


cdef void begin_number(UsageScan* scan, char c) noexcept nogil:
    scan.in_number = True
    scan.bad_number = c == b'-'
    scan.count = 0 if scan.bad_number else c - 48
    scan.digits = 1


cdef void end_number(UsageScan* scan) noexcept nogil:
    cdef int64_t* place = NULL
    scan.in_number = False
    scan.has_key = scan.has_colon = False
    if scan.lists == 0:
        place = place_of(&scan.pending, scan.key, scan.key_size)
    if place is NULL:
        return
    if not scan.bad_number and scan.digits <= MAX_COUNT_DIGITS:
        place[0] = scan.count
    else:
        scan.pending.refused = True


cdef inline void read_string_byte(UsageScan* scan, char c) noexcept nogil:
    if scan.escaped:
        scan.escaped = False
        scan.key_size = KEY_KEPT + 1    # no known name has an escape
    elif c == b'\\':
        scan.escaped = True
    elif c == b'"':
        scan.in_string = False
        scan.has_key = True
        scan.has_colon = False
    elif scan.key_size < KEY_KEPT:
        scan.key[scan.key_size] = c
        scan.key_size += 1
    else:
        scan.key_size = KEY_KEPT + 1


cdef inline void read_object_byte(UsageScan* scan, char c) noexcept nogil:
    """Read one byte between the braces: `"name": integer` pairs, at any depth but not in lists."""
    if scan.in_string:
        read_string_byte(scan, c)
        return
    if scan.in_number:
        if is_digit(c):
            scan.digits += 1
            if scan.digits <= MAX_COUNT_DIGITS:
                scan.count = scan.count * 10 + (c - 48)
            return
        if c == b'.' or c == b'e' or c == b'E' or c == b'+' or c == b'-':
            scan.bad_number = True
            return
        end_number(scan)
    if c == b'"':
        scan.in_string = True
        scan.key_size = 0
    elif c == b':':
        scan.has_colon = scan.has_key
    elif scan.has_colon and (is_digit(c) or c == b'-'):
        begin_number(scan, c)
    elif not is_space(c):
        scan.has_key = scan.has_colon = False
        scan.depth += (c == b'{') - (c == b'}')
        scan.lists += (c == b'[') - (c == b']')


cdef Py_ssize_t seek_key(UsageScan* scan, const char* data, Py_ssize_t size) noexcept nogil:
    """Return the offset past the beginning of the next key, or -1 when it does not end in this piece."""
    cdef:
        Py_ssize_t i, start, rest
        const char* found
        char before

    if scan.matched:                    # the last piece ended inside what may be the key
        rest = KEY_SIZE - scan.matched
        if size < rest:
            if memcmp(data, KEY + scan.matched, size) == 0:
                scan.matched += <int> size
                return -1
        elif memcmp(data, KEY + scan.matched, rest) == 0:
            scan.matched = 0
            return rest
        scan.matched = 0                # no other match can begin inside the part that matched

    i = 0
    while i < size:
        found = <const char*> memmem(data + i, size - i, KEY, KEY_SIZE)
        if found is NULL:
            break
        start = distance(data, found)
        before = data[start - 1] if start > 0 else scan.previous
        if before != b'\\':
            return start + KEY_SIZE
        i = start + 1

    # Does the piece end in a beginning of the key?
    for rest in range(1, KEY_SIZE):
        start = size - rest
        if start < i:
            break
        if data[start] == b'"' and memcmp(data + start, KEY, rest) == 0:
            before = data[start - 1] if start > 0 else scan.previous
            if before != b'\\':
                scan.matched = <int> rest
                break
    return -1


cdef bint read_key_byte(UsageScan* scan, char c) noexcept nogil:
    """Read a byte behind the beginning of a key; return False if it makes it another key."""
    if c == b'"' and scan.matched in (0, TAIL_SIZE - 1):
        scan.state = SEEK_COLON
        scan.matched = 0
        return True
    if scan.matched < TAIL_SIZE - 1 and c == TAIL[scan.matched]:
        scan.matched += 1
        return True
    scan.state = SEEK_KEY
    scan.matched = 0
    return False


cdef Py_ssize_t read_object(UsageScan* scan, const char* data, Py_ssize_t size) noexcept nogil:
    """Read on in the object; return the offset past its last brace, or `size`."""
    cdef Py_ssize_t i

    for i in range(size):
        scan.size += 1
        if scan.size > USAGE_AT_MOST:
            scan.state = SEEK_KEY       # nothing that large is a usage object
            return i
        read_object_byte(scan, data[i])
        if scan.depth == 0 and not scan.in_string:
            end_object(scan)
            return i + 1
    return size


cdef void usage_feed(UsageScan* scan, const char* data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t i = 0, past

    while i < size:
        if scan.state == SEEK_KEY:
            past = seek_key(scan, data + i, size - i)
            if past < 0:
                break
            i += past
            scan.state = IN_KEY
            scan.previous = b'e'
        elif scan.state == IN_KEY:
            if read_key_byte(scan, data[i]):
                i += 1
        elif scan.state == IN_OBJECT:
            i += read_object(scan, data + i, size - i)
            scan.previous = data[i - 1] if i else scan.previous
        elif is_space(data[i]):
            i += 1
        elif scan.state == SEEK_COLON and data[i] == b':':
            scan.state = SEEK_OBJECT
            i += 1
        elif scan.state == SEEK_OBJECT and data[i] == b'{':
            begin_object(scan)
        else:                           # null, a string, or no key at all
            scan.state = SEEK_KEY
            scan.previous = b':'        # anything but a backslash
    if size > 0:
        scan.previous = data[size - 1]
    RELAYD_CHECK(scan.depth >= 0 and 0 <= scan.matched < TAIL_SIZE)


# --- for Python -------------------------------------------------------------------------------------

@cython.final
cdef class EventScanner:
    """An EventScan that Python can hold, for tests, tools and benchmarks.

    The relay embeds the struct and never makes one of these.  `terminator` is a Terminator.
    """

    def __cinit__(self, int terminator=TERMINATOR_NONE):
        scan_reset(&self.scan, terminator)

    @property
    def events(self):
        """Complete events seen so far."""
        return self.scan.events

    @property
    def comments(self):
        """How many of them were comments: neither data nor a name."""
        return self.scan.comments

    @property
    def terminated(self):
        """True once the route's terminator has been seen."""
        return bool(self.scan.terminated)

    @property
    def errored(self):
        """True once an error event has been seen."""
        return bool(self.scan.errored)

    @property
    def at_boundary(self):
        """True where nothing of the next event has been read."""
        return bool(scan_at_boundary(&self.scan))

    cpdef Py_ssize_t feed(self, bytes data) except -1:
        """Read `data`; return the offset past the last event that ended in it, or 0."""
        return scan_feed(&self.scan, data, len(data))

    def finish(self):
        """Say that the stream has ended."""
        scan_finish(&self.scan)

    def feed_one(self, bytes data):
        """Read `data` up to the first event that ends; return the offset past it, or 0."""
        return scan_feed_one(&self.scan, data, len(data))


@cython.final
cdef class UsageScanner:
    """A UsageScan that Python can hold, for tests, tools and benchmarks."""

    def __cinit__(self):
        usage_reset(&self.scan)

    @property
    def objects(self):
        """Usage objects read so far."""
        return self.scan.objects

    @property
    def usage(self):
        """(input, output, cached input, cache write, reasoning) tokens; None where nothing was said.

        Reasoning is a part of the output, whatever the worker's words for it.
        """
        return tuple(
            None if count < 0 else count
            for count in (
                self.scan.usage.input,
                usage_output(&self.scan.usage),
                self.scan.usage.cached_input,
                self.scan.usage.cache_write,
                usage_reasoning(&self.scan.usage),
            )
        )

    @property
    def refused(self):
        """True once a count was negative, fractional or absurd and was not believed."""
        return bool(self.scan.usage.refused)

    cpdef int feed(self, bytes data) except -1:
        """Read `data`, the next piece of a body."""
        usage_feed(&self.scan, data, len(data))
        return 0
