# cython: language_level=3
"""Which lines of a head go on to the other side, and which stop a request.

A gateway that forwards an ambiguous head lets two servers read it in two ways, and that is how
requests are smuggled.  So ambiguity is refused, never repaired: one Host, one framing, names that are
tokens, values without control bytes, a target that is a plain path.  The parsers in front of this
(llhttp in aiohttp and in httptools) refuse much of it already; what is checked here is checked
whichever parser it came from.

What goes on is everything but a deny-list: hop-by-hop fields and those that Connection names, framing
(made anew), identity and forwarding fields (a client could lie in them), and the spellings of all of
these with underscores, which many servers read as the same name.  Unknown fields pass: SDKs add
session keys and beta flags every month.

Called once per request and once per answer, on the loop's thread; 2-3 us for a dozen lines.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memchr, memcmp, memcpy, strlen
from libc.time cimport time, time_t

import os
from email.utils import formatdate

cdef extern from "<strings.h>" nogil:
    int strncasecmp(const char* one, const char* other, size_t size)

cdef extern from "<string.h>" nogil:
    void* memmem(const void* haystack, size_t haystack_size, const void* needle, size_t needle_size)

# What to do with a field, by its name.
cdef enum Action:
    PASS = 0
    DROP = 1                # never goes on
    CONNECTION = 2          # dropped, and so are the fields that it names
    HOST = 3
    CONTENT_LENGTH = 4
    TRANSFER_ENCODING = 5
    CONTENT_TYPE = 6        # noted, and passes
    CONTENT_ENCODING = 7    # noted, and passes
    ACCEPT_ENCODING = 8     # noted; streams are asked for as identity
    FORWARDED_FOR = 9
    FORWARDED_PROTO = 10
    REQUEST_ID = 11
    TRACEPARENT = 12
    AUTHORIZATION = 13
    API_KEY = 14
    EXPECT = 15
    VIA = 16
    ANTHROPIC = 17
    RETRY_AFTER = 18
    RETRY_AFTER_MS = 19
    DATE = 20
    ACCEL_BUFFERING = 21
    PLAIN_ID = 22
    TIMEOUT = 23            # how long the client will wait
    PRIORITY = 24
    RATE_LIMIT = 25         # the worker's own limits; pass unless relayd tells of its own

HOP_BY_HOP = frozenset([
    b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate",
    b"proxy-authentication-info", b"te", b"trailer", b"upgrade", b"http2-settings",
])
# Fields that say who the client is or what it asked for in a way that servers believe.
IDENTITY = frozenset([
    b"forwarded", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-server",
    b"x-forwarded-prefix", b"x-forwarded-ssl", b"x-forwarded-scheme", b"x-real-ip", b"x-client-ip",
    b"x-cluster-client-ip", b"true-client-ip", b"x-original-url", b"x-original-host",
    b"x-rewrite-url", b"proxy",
])
# Connection may not be used to take these away from a request.
UNNAMEABLE = frozenset([
    b"host", b"content-length", b"content-type", b"content-encoding", b"transfer-encoding",
    b"authorization", b"x-api-key", b"api-key", b"traceparent", b"tracestate", b"x-request-id",
    b"x-forwarded-for", b"x-forwarded-proto", b"accept", b"accept-encoding", b"anthropic-version",
])

REQUEST_ACTIONS = {
    b"connection": CONNECTION,
    b"host": HOST,
    b"content-length": CONTENT_LENGTH,
    b"transfer-encoding": TRANSFER_ENCODING,
    b"content-type": CONTENT_TYPE,
    b"content-encoding": CONTENT_ENCODING,
    b"accept-encoding": ACCEPT_ENCODING,
    b"x-forwarded-for": FORWARDED_FOR,
    b"x-forwarded-proto": FORWARDED_PROTO,
    b"x-request-id": REQUEST_ID,
    b"traceparent": TRACEPARENT,
    b"authorization": AUTHORIZATION,
    b"x-api-key": API_KEY,
    b"api-key": API_KEY,
    b"expect": EXPECT,
    b"via": VIA,
    b"anthropic-version": ANTHROPIC,
    b"x-relayd-timeout-ms": TIMEOUT,
    b"x-relayd-priority": PRIORITY,
    **{name: DROP for name in HOP_BY_HOP | IDENTITY},
}
# Alt-Svc would send the client past relayd; a worker has no say over x-relayd-*.
RESPONSE_ACTIONS = {
    b"connection": CONNECTION,
    b"content-length": CONTENT_LENGTH,
    b"transfer-encoding": TRANSFER_ENCODING,
    b"content-type": CONTENT_TYPE,
    b"content-encoding": CONTENT_ENCODING,
    b"retry-after": RETRY_AFTER,
    b"retry-after-ms": RETRY_AFTER_MS,
    b"x-request-id": REQUEST_ID,
    b"request-id": PLAIN_ID,
    b"x-accel-buffering": ACCEL_BUFFERING,
    b"date": DATE,
    b"alt-svc": DROP,
    **{name: DROP for name in HOP_BY_HOP},
}

cdef bytes RATE_LIMIT_NAMES = b"x-ratelimit-"
cdef dict PRIORITIES = {
    b"critical": PRIORITY_CRITICAL,
    b"interactive": PRIORITY_INTERACTIVE,
    b"default": PRIORITY_DEFAULT,
    b"batch": PRIORITY_BATCH,
}

# Actions by the exact spelling received, so that a known name costs one look-up, a third of a dict's.  A
# peer chooses the spellings: a name may lie in one of eight places, and what finds none of them free is
# looked up the long way each time.
cdef enum:
    SPELLINGS = 1024                    # a power of two
    SPELLING_PLACES = 8
    LONGEST_KEPT = 64                   # bytes; a peer may send names of any length
    TIMEOUT_MS_AT_MOST = 604800000      # a week

# A number in each byte of a word.
cdef uint64_t EACH_1 = 0x0101010101010101, EACH_32 = 0x2020202020202020, EACH_128 = 0x8080808080808080

cdef struct Spelling:
    const char* name                    # of an object in spellings_kept; NULL where there is none
    Py_ssize_t size
    int action

cdef Spelling[SPELLINGS] request_spellings
cdef Spelling[SPELLINGS] response_spellings
cdef list spellings_kept = []
cdef uint64_t FNV_PRIME = 0x100000001B3

# Set once per process: the pseudonym that this process adds to Via and recognises there.
cdef bytes own_via = b""


def set_via(bytes pseudonym):
    """Make `pseudonym` the name under which this process adds itself to Via."""
    global own_via
    own_via = pseudonym


# --- names for requests -----------------------------------------------------------------------------

# SplitMix64 (Steele, Lea, Flood 2014), seeded by the system: ids need to be distinct, not secret.
cdef uint64_t id_state = int.from_bytes(os.urandom(8), "little")


@cython.overflowcheck(False)            # it is meant to overflow
cdef uint64_t next_random() noexcept nogil:
    global id_state
    cdef uint64_t z
    id_state += <uint64_t> 0x9E3779B97F4A7C15
    z = id_state
    z = (z ^ (z >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <uint64_t> 0x94D049BB133111EB
    return z ^ (z >> 31)


cpdef bytes random_hex(int words):
    """Return `words` times 16 random lower-case hexadecimal digits."""
    cdef bytes text = PyBytes_FromStringAndSize(NULL, words * 16)
    put_random_hex(PyBytes_AS_STRING(text), words * 2)
    return text


@cython.overflowcheck(False)            # bits, not numbers
cdef void put_random_hex(char* out, int eights) noexcept nogil:
    """Write `eights` times 8 random hexadecimal digits, eight nibbles spread over eight bytes at once."""
    cdef uint64_t drawn = 0, nibbles
    cdef int i
    for i in range(eights):
        drawn = next_random() if i % 2 == 0 else drawn >> 32
        nibbles = drawn & <uint64_t> 0xFFFFFFFF
        nibbles = (nibbles | nibbles << 16) & <uint64_t> 0x0000FFFF0000FFFF
        nibbles = (nibbles | nibbles << 8) & <uint64_t> 0x00FF00FF00FF00FF
        nibbles = (nibbles | nibbles << 4) & <uint64_t> 0x0F0F0F0F0F0F0F0F
        # 0-9 become "0"-"9"; 10-15 carry into bit 4 when 6 is added, and get 39 more: "a"-"f".
        nibbles += <uint64_t> 0x3030303030303030 + (
            (nibbles + <uint64_t> 0x0606060606060606) >> 4 & <uint64_t> 0x0101010101010101) * 39
        memcpy(out + i * 8, &nibbles, 8)


# --- the date ---------------------------------------------------------------------------------------

cdef time_t date_s = 0
cdef bytes date = b""


cpdef bytes http_date():
    """Return the Date value for now (RFC 9110 5.6.7), made once a second."""
    global date_s, date
    cdef time_t now_s = time(NULL)
    if now_s != date_s:
        date = formatdate(now_s, usegmt=True).encode("ascii")
        date_s = now_s
    return date


# --- bytes ------------------------------------------------------------------------------------------

# RFC 9110 5.6.2: the characters of a token.
cdef bint[256] IS_TOKEN
cdef bint[256] IS_HOST
cdef bint[256] IS_ID

for _c in range(256):
    IS_TOKEN[_c] = chr(_c).isalnum() and _c < 128 or chr(_c) in "!#$%&'*+-.^_`|~"
    IS_HOST[_c] = chr(_c).isalnum() and _c < 128 or chr(_c) in "-._~%"
    IS_ID[_c] = chr(_c).isalnum() and _c < 128 or chr(_c) in "._:/+=@-"


@cython.overflowcheck(False)            # the check is not made for pointers
cdef inline Py_ssize_t distance(const char* start, const char* end) noexcept nogil:
    return end - start


# Lines of a head being put together, in memory that is kept for the next one.  Nothing in between may run
# other code: there is one of each.
cdef struct Block:
    char* text
    Py_ssize_t size
    Py_ssize_t room

cdef Block passed_lines
cdef Block credential_lines


cdef int add_line(Block* block, bytes name, bytes value) except -1:
    """Add "name: value\\r\\n"."""
    cdef Py_ssize_t name_size = PyBytes_GET_SIZE(name), value_size = PyBytes_GET_SIZE(value)
    cdef Py_ssize_t size = block.size + name_size + value_size + 4
    cdef char* out
    if size > block.room:
        out = <char*> realloc(block.text, size * 2)
        if out is NULL:
            raise MemoryError()
        block.text = out
        block.room = size * 2
    out = block.text + block.size
    memcpy(out, PyBytes_AS_STRING(name), name_size)
    out += name_size
    memcpy(out, b": ", 2)
    memcpy(out + 2, PyBytes_AS_STRING(value), value_size)
    memcpy(out + 2 + value_size, b"\r\n", 2)
    block.size = size
    return 0


cdef bytes lines_of(Block* block):
    return PyBytes_FromStringAndSize(block.text, block.size)


cdef int put_number(char* out, uint64_t number) noexcept nogil:
    """Write `number` in decimal; return how many digits, at most 20."""
    cdef char[20] digits
    cdef int size = 0, i
    while True:
        digits[size] = 48 + <char> (number % 10)
        number //= 10
        size += 1
        if number == 0:
            break
    for i in range(size):
        out[i] = digits[size - 1 - i]
    return size


cdef int put_rate_name(char* out, const char* start, bytes what) noexcept:
    """Write `start`, the kind of a rate, and a colon; return how many bytes."""
    cdef int size = <int> strlen(start), more = <int> PyBytes_GET_SIZE(what)
    memcpy(out, start, size)
    memcpy(out + size, PyBytes_AS_STRING(what), more)
    memcpy(out + size + more, b": ", 2)
    return size + more + 2


cdef int put_duration(char* out, uint64_t ns) noexcept nogil:
    """Write a duration as Go does, in milliseconds rounded up: `0s`, `12ms`, `1.5s`, `6m0s`; at most 32."""
    cdef uint64_t ms = ns // 1000000 + (ns % 1000000 != 0), seconds = ms // 1000
    cdef int size = 0
    if 0 < ms < 1000:
        size = put_number(out, ms)
        out[size] = b'm'
        out[size + 1] = b's'
        return size + 2
    if seconds >= 3600:
        size += put_number(out, seconds // 3600)
        out[size] = b'h'
        size += 1
    if seconds >= 60:
        size += put_number(out + size, seconds // 60 % 60)
        out[size] = b'm'
        size += 1
    size += put_number(out + size, seconds % 60)
    ms %= 1000
    if ms:
        out[size] = b'.'
        out[size + 1] = 48 + <char> (ms // 100)
        out[size + 2] = 48 + <char> (ms // 10 % 10)
        out[size + 3] = 48 + <char> (ms % 10)
        size += 4
        while out[size - 1] == 48:
            size -= 1
    out[size] = b's'
    return size + 1


cpdef bytes rate_lines(bytes what, int64_t most, int64_t left, int64_t full_in_ns):
    cdef char[320] lines
    cdef int size = 0
    if PyBytes_GET_SIZE(what) > 32 or min(most, left, full_in_ns) < 0:
        raise ValueError("a longer name, or a negative number, than lines of a rate have")
    size += put_rate_name(lines, b"X-RateLimit-Limit-", what)
    size += put_number(lines + size, <uint64_t> most)
    size += put_rate_name(lines + size, b"\r\nX-RateLimit-Remaining-", what)
    size += put_number(lines + size, <uint64_t> left)
    size += put_rate_name(lines + size, b"\r\nX-RateLimit-Reset-", what)
    size += put_duration(lines + size, <uint64_t> full_in_ns)
    memcpy(lines + size, b"\r\n", 2)
    return lines[:size + 2]


cdef bytes length_line(Py_ssize_t length):
    """Return the Content-Length line of a body of `length` bytes."""
    cdef char[48] line
    memcpy(line, b"Content-Length: ", 16)
    cdef int size = 16 + put_number(line + 16, <uint64_t> length)
    memcpy(line + size, b"\r\n", 2)
    return line[:size + 2]


cdef bint is_token(bytes name) noexcept:
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(name)
    cdef Py_ssize_t i, size = PyBytes_GET_SIZE(name)
    for i in range(size):
        if not IS_TOKEN[text[i]]:
            return False
    return size > 0


cdef bint is_clean(bytes value) noexcept:
    """True if there is no control byte but tab in `value`."""
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(value)
    cdef Py_ssize_t i = 0, k, size = PyBytes_GET_SIZE(value)
    cdef uint64_t word
    while i + 8 <= size:
        memcpy(&word, text + i, 8)
        if not has_control(word):
            i += 8
            continue
        for k in range(i, i + 8):                   # a tab, a byte above 127, or what is looked for
            if is_control(text[k]):
                return False
        i += 8
    for k in range(i, size):
        if is_control(text[k]):
            return False
    return True


cdef inline bint is_control(unsigned char byte) noexcept nogil:
    return byte < 32 and byte != 9 or byte == 127


@cython.overflowcheck(False)            # bits, not numbers
cdef inline uint64_t has_control(uint64_t word) noexcept nogil:
    """0 only if each of the eight bytes is printable ASCII or space.

    A byte of 32 or more keeps its top bit when 32 is taken from it with the top bit set before; adding 1
    sets that of 127.
    """
    return ((((word | EACH_128) - EACH_32) ^ EACH_128) | (word + EACH_1) | word) & EACH_128


cdef bint is_digits(const unsigned char* text, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    for i in range(size):
        if not 48 <= text[i] <= 57:
            return False
    return size > 0


cdef Py_ssize_t read_length(bytes value) noexcept:
    """Return Content-Length as a number, or -1 when it is not 1 to 18 digits."""
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(value)
    cdef Py_ssize_t i, size = PyBytes_GET_SIZE(value), length = 0
    if size > 18 or not is_digits(text, size):
        return -1
    for i in range(size):
        length = length * 10 + (text[i] - 48)
    return length


cdef bint is_host(bytes host) noexcept:
    """True for a name or address with an optional port, and nothing else (RFC 9110 7.2)."""
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(host)
    cdef Py_ssize_t i = 0, size = PyBytes_GET_SIZE(host)
    if size == 0 or size > 262:
        return False
    if text[0] == 91:                               # [IPv6]
        i = 1
        while i < size and (
                48 <= text[i] <= 58 or 65 <= text[i] <= 70 or 97 <= text[i] <= 102 or text[i] == 46):
            i += 1
        if i < 3 or i == size or text[i] != 93:
            return False
        i += 1
    else:
        while i < size and IS_HOST[text[i]]:
            i += 1
        if i == 0:
            return False
    if i == size:
        return True
    return text[i] == 58 and size - i <= 6 and (size - i == 1 or is_digits(text + i + 1, size - i - 1))


cdef bint is_path(bytes target) noexcept:
    """True for visible ASCII that starts with a slash and has no fragment."""
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(target)
    cdef Py_ssize_t i, size = PyBytes_GET_SIZE(target)
    if size == 0 or text[0] != 47:
        return False
    for i in range(size):
        if text[i] <= 32 or text[i] >= 127 or text[i] == 35:
            return False
    return True


cdef bint climbs(bytes path):
    """True if a segment is "..", however its dots and slashes are written."""
    cdef bytes plain
    cdef const char* text = PyBytes_AS_STRING(path)
    cdef size_t size = PyBytes_GET_SIZE(path)
    if memmem(text, size, b"..", 2) is NULL and memmem(text, size, b"%2", 2) is NULL:
        return False
    plain = path.lower().replace(b"%2e", b".").replace(b"%2f", b"/").replace(b"%5c", b"/")
    return b".." in [part.partition(b";")[0] for part in plain.replace(b"\\", b"/").split(b"/")]


cdef bint is_request_id(bytes value) noexcept:
    """True for 1 to 128 characters that are safe in a header, a log and a URL."""
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(value)
    cdef Py_ssize_t i, size = PyBytes_GET_SIZE(value)
    for i in range(size):
        if not IS_ID[text[i]]:
            return False
    return 0 < size <= 128


cdef bint is_traceparent(bytes value) noexcept:
    """True for version-trace-parent-flags in lower-case hexadecimal (W3C Trace Context, level 1)."""
    cdef const unsigned char* text = <const unsigned char*> PyBytes_AS_STRING(value)
    cdef Py_ssize_t i
    if PyBytes_GET_SIZE(value) != 55:
        return False
    for i in range(55):
        if i == 2 or i == 35 or i == 52:
            if text[i] != 45:
                return False
        elif not (48 <= text[i] <= 57 or 97 <= text[i] <= 102):
            return False
    return True


cdef bint has_two_credentials(bytes value) noexcept:
    """True for `Bearer a, Bearer b` and other ways to put two into one line."""
    cdef const char* text = PyBytes_AS_STRING(value)
    cdef Py_ssize_t start = 7, end = PyBytes_GET_SIZE(value)
    if end < start or strncasecmp(text, b"bearer ", 7) != 0:
        return False
    while start < end and text[start] == 32:
        start += 1
    while start < end and text[end - 1] == 32:
        end -= 1
    return (memchr(text + start, b',', end - start) is not NULL
            or memchr(text + start, b' ', end - start) is not NULL)


# --- actions ----------------------------------------------------------------------------------------

@cython.overflowcheck(False)            # it is meant to overflow
cdef uint64_t hash_of(const char* text, Py_ssize_t size) noexcept nogil:
    """FNV-1a.  Whoever makes names that lie in the same places only makes them slow to look up."""
    cdef uint64_t value = <uint64_t> size
    cdef Py_ssize_t i
    for i in range(size):
        value = (value ^ <unsigned char> text[i]) * FNV_PRIME
    return value ^ value >> 32


cdef int action_of(bytes name, dict actions, Spelling* spellings) except -1:
    """Return what to do with the field `name`; -2 when it is not a token."""
    cdef const char* text = PyBytes_AS_STRING(name)
    cdef Py_ssize_t i, size = PyBytes_GET_SIZE(name)
    cdef uint64_t place = hash_of(text, size)
    cdef Spelling* spelling
    cdef int action
    for i in range(SPELLING_PLACES):
        spelling = &spellings[(place + <uint64_t> i) & (SPELLINGS - 1)]
        if spelling.name is NULL:
            break
        if spelling.size == size and memcmp(spelling.name, text, size) == 0:
            return spelling.action
    if not is_token(name):
        return -2
    action = slow_action_of(name.lower(), actions)
    if spelling.name is NULL and size <= LONGEST_KEPT:
        spellings_kept.append(name)
        spelling.size = size
        spelling.action = action
        spelling.name = text
    return action


cdef int slow_action_of(bytes name, dict actions) except -1:
    cdef object action = actions.get(name)
    cdef bytes twin
    if action is not None:
        return action
    if name.startswith((b"x-relayd-", b"x-relayd_")):
        return DROP
    if b"_" in name:
        twin = name.replace(b"_", b"-")
        if twin.startswith((b"x-relayd-", b"x-forwarded-")) or actions.get(twin, PASS) != PASS:
            return DROP                 # X_Forwarded_For is read as X-Forwarded-For by many servers
    if name.startswith(b"x-forwarded-"):
        return DROP if actions is REQUEST_ACTIONS else PASS
    if name.startswith(RATE_LIMIT_NAMES) and actions is RESPONSE_ACTIONS:
        return RATE_LIMIT
    return PASS


cdef set named_by(bytes connection):
    """Return the lower-case field names in a Connection value that it may take away."""
    if connection == b"keep-alive" or connection == b"close":
        return set()
    return {
        name for name in [part.strip().lower() for part in connection.split(b",")]
        if name and name not in UNNAMEABLE and name not in (b"close", b"keep-alive")
    }


cdef bytes without_named(bytes lines, object named):
    """Return `lines` without the fields in `named`."""
    return b"".join([
        line for line in lines.splitlines(True) if line.partition(b":")[0].lower() not in named])


cdef bytes without_rate_limits(bytes lines):
    """Return `lines` without what a worker says of its own limits: a client is to hear of one kind only."""
    return b"".join([
        line for line in lines.splitlines(True) if not line[:16].lower().startswith(RATE_LIMIT_NAMES)])


# --- requests ---------------------------------------------------------------------------------------

@cython.final
cdef class RequestHead:
    """A client's head, checked: what relayd acts on, and what goes on to a worker.

    `target` is the request target as received; `version_minor` is 0 or 1, or -1 for any other
    version; `headers` a sequence of (name, value) bytes.  When `fault` is not HEAD_OK the rest may be
    incomplete.
    """

    def __init__(self, str method, bytes target, int version_minor, object headers):
        self.method = method
        self.content_length = -1
        self.priority = PRIORITY_DEFAULT
        self.passed = self.credentials = b""
        self.target = target
        self.path = target
        self.size = PyBytes_GET_SIZE(target) + 24
        self.fault = self._read(method, target, version_minor, headers)
        self._name()

    cdef int _read(self, str method, bytes target, int version_minor, object headers) except -1:
        cdef int fault
        if version_minor < 0:
            return HEAD_BAD_VERSION
        if method == "TRACE" or method == "CONNECT":
            return HEAD_BAD_METHOD
        fault = self._read_headers(headers)
        if fault != HEAD_OK:
            return fault
        if self.host is None and version_minor == 1 or self.host is not None and not is_host(self.host):
            return HEAD_BAD_HOST
        if self.chunked and (version_minor == 0 or self.content_length >= 0):
            return HEAD_BAD_LENGTH
        return self._read_target(target)

    cdef int _name(self) except -1:
        """Keep the client's request id and traceparent if they are sound, or make them."""
        cdef char[64] drawn
        if self.request_id is not None and not is_request_id(self.request_id):
            self.request_id = None
        if self.traceparent is not None and not is_traceparent(self.traceparent):
            self.traceparent = None
        if self.request_id is not None and self.traceparent is not None:
            return 0
        if self.request_id is None:
            memcpy(drawn, b"req_", 4)
            put_random_hex(drawn + 4, 3)
            self.request_id = drawn[:28]
        if self.traceparent is None:    # version-trace-parent-flags
            memcpy(drawn, b"00-", 3)
            put_random_hex(drawn + 3, 4)
            drawn[35] = b"-"
            put_random_hex(drawn + 36, 2)
            memcpy(drawn + 52, b"-01", 3)
            self.traceparent = drawn[:55]
        return 0

    cdef int _read_target(self, bytes target) except -1:
        cdef bytes rest, authority
        cdef Py_ssize_t at
        cdef const char* question
        if not target.startswith(b"/") and target[:7].lower() == b"http://":    # RFC 9112 3.2.2
            rest = target[7:]
            at = rest.find(b"/")
            authority = rest if at < 0 else rest[:at]
            if not is_host(authority) or self.host is None or authority.lower() != self.host.lower():
                return HEAD_BAD_TARGET
            target = b"/" if at < 0 else rest[at:]
        if not is_path(target):
            return HEAD_BAD_TARGET
        question = <const char*> memchr(PyBytes_AS_STRING(target), b'?', PyBytes_GET_SIZE(target))
        if question is NULL:
            self.path = target
        else:
            self.path = target[:distance(PyBytes_AS_STRING(target), question)]
        self.target = target
        return HEAD_BAD_TARGET if climbs(self.path) else HEAD_OK

    cdef int _read_headers(self, object headers) except -1:
        cdef:
            bytes name, value
            set named = None
            int action, fault

        passed_lines.size = credential_lines.size = 0
        for name, value in headers:
            self.size += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + 4
            action = action_of(name, REQUEST_ACTIONS, request_spellings)
            if action < 0:
                self.bad_name = name
                return HEAD_BAD_NAME
            if not is_clean(value):
                self.bad_name = name
                return HEAD_BAD_VALUE
            if action == PASS:
                add_line(&passed_lines, name, value)
                continue
            if action == CONNECTION:
                named = named_by(value) if named is None else named | named_by(value)
                continue
            if action == AUTHORIZATION or action == API_KEY:
                add_line(&credential_lines, name, value)
            elif action in (CONTENT_TYPE, CONTENT_ENCODING, VIA, ANTHROPIC):
                add_line(&passed_lines, name, value)
            fault = self._note(action, value)
            if fault != HEAD_OK:
                self.bad_name = name
                return fault
        self.passed = lines_of(&passed_lines)
        if named:
            self.passed = without_named(self.passed, named)
        self.credentials = lines_of(&credential_lines)
        return HEAD_OK

    cdef int _note(self, int action, bytes value) except -1:
        """Keep what the field says to relayd; return a HeadFault when it says it wrongly."""
        if action == HOST:
            if self.host is not None:
                return HEAD_BAD_HOST
            self.host = value
        elif action == CONTENT_LENGTH:
            if self.content_length >= 0:
                return HEAD_BAD_LENGTH
            self.content_length = read_length(value)
            if self.content_length < 0:
                return HEAD_BAD_LENGTH
        elif action == TRANSFER_ENCODING:
            if self.chunked or value.lower() != b"chunked":
                return HEAD_BAD_CODING
            self.chunked = True
        elif action == AUTHORIZATION:
            if self.authorization is not None or has_two_credentials(value):
                return HEAD_BAD_CREDENTIAL
            self.authorization = value
        elif action == API_KEY:
            self.api_key = value
        elif action == CONTENT_TYPE:
            self.content_type = value
        elif action == CONTENT_ENCODING:
            self.content_encoding = value
        elif action == ACCEPT_ENCODING:
            self.accept_encoding = value if self.accept_encoding is None else (
                self.accept_encoding + b", " + value)
        elif action == FORWARDED_FOR:
            self.forwarded_for = value if self.forwarded_for is None else (
                self.forwarded_for + b", " + value)
        elif action == FORWARDED_PROTO:
            self.forwarded_proto = value
        elif action == REQUEST_ID:
            self.request_id = value
        elif action == TRACEPARENT:
            self.traceparent = value
        elif action == ANTHROPIC:
            self.anthropic = True
        elif action == EXPECT:
            if value.lower() != b"100-continue":
                return HEAD_BAD_EXPECT
            self.expect_continue = True
        elif action == TIMEOUT:
            self.timeout_ms = read_length(value)
            if not 0 < self.timeout_ms <= TIMEOUT_MS_AT_MOST:
                return HEAD_BAD_WISH
        elif action == PRIORITY:
            if value not in PRIORITIES:
                return HEAD_BAD_WISH
            self.priority = PRIORITIES[value]
        elif action == VIA:
            if own_via and own_via in value:
                return HEAD_LOOP
        return HEAD_OK

    cpdef bytes for_worker(
        self, bytes host, bytes client, bint stream, bint with_credentials, Py_ssize_t length,
        object without=None
    ):
        """Return the bytes of the head that a worker gets, blank line included.

        `host` is the worker's Host value; `client` the lines about who asks; `stream` asks for
        an identity coding instead of passing Accept-Encoding on; `length` is the body's size in
        bytes, -1 to announce chunks, -2 for no body; fields whose lower-case names are in `without`
        stay behind.
        """
        cdef list parts = [
            self.method.encode(), b" ", self.target, b" HTTP/1.1\r\nHost: ", host, b"\r\n",
            without_named(self.passed, without) if without else self.passed]
        if with_credentials:
            parts.append(self.credentials)
        if stream:
            parts.append(b"Accept-Encoding: identity\r\n")
        elif self.accept_encoding is not None:
            parts.append(b"Accept-Encoding: %b\r\n" % self.accept_encoding)
        parts.append(client)
        parts.append(b"X-Request-Id: ")
        parts.append(self.request_id)
        parts.append(b"\r\nTraceparent: ")
        parts.append(self.traceparent)
        parts.append(b"\r\n")
        if length >= 0:
            parts.append(length_line(length))
        elif length == -1:
            parts.append(b"Transfer-Encoding: chunked\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)


cpdef bint is_one_message(bytes data):
    """True if `data`, which begins where a message does, holds no more than one, or not all of one.

    What cannot be told from a glance at the head, the length of a chunked body, counts as more.
    """
    cdef const char* line = PyBytes_AS_STRING(data)
    cdef const char* end = line + PyBytes_GET_SIZE(data)
    cdef const char* rest = after_line(line, end)
    cdef Py_ssize_t length = 0
    while rest is not NULL and distance(line, rest) <= 2:
        line = rest                     # blank lines in front of a head
        rest = after_line(line, end)
    while rest is not NULL:
        line = rest
        rest = after_line(line, end)
        if rest is NULL:
            break
        if distance(line, rest) <= 2:   # the blank line behind the head
            return distance(rest, end) <= length
        if starts_with(line, rest, b"content-length:"):
            length = digits_in(line + 15, rest)
    return True                         # the head is not complete


cdef Py_ssize_t digits_in(const char* text, const char* end) noexcept nogil:
    """Return the number that the first digits make, 0 if there are none, at most 10**18."""
    cdef Py_ssize_t number = 0
    while text < end and not 48 <= text[0] <= 57:
        text += 1
    while text < end and 48 <= text[0] <= 57 and number < <Py_ssize_t> 100000000000000000:
        number = number * 10 + (text[0] - 48)
        text += 1
    return number


cdef const char* after_line(const char* line, const char* end) noexcept nogil:
    """Return where the line after `line` begins, or NULL when this one has no end."""
    cdef const char* feed = <const char*> memchr(line, b"\n", distance(line, end))
    if feed is NULL:
        return NULL
    return feed + 1


cdef bint starts_with(const char* line, const char* end, const char* name) noexcept nogil:
    """True if `line` begins with the lower-case `name`, in any spelling."""
    cdef Py_ssize_t size = strlen(name)
    return distance(line, end) >= size and strncasecmp(line, name, size) == 0


# --- answers ----------------------------------------------------------------------------------------

@cython.final
cdef class ResponseHead:
    """A worker's head: what relayd acts on, and what goes on to the client."""


cpdef ResponseHead read_response_head(list headers):
    """Return what `headers`, the (name, value) pairs of an answer, say and pass on."""
    cdef ResponseHead head = ResponseHead.__new__(ResponseHead)
    head.content_length = -1
    head.valid = read_answer(head, headers)
    return head


cdef bint read_answer(ResponseHead head, list headers) except -1:
    cdef:
        bytes name, value
        set named = None
        int action

    passed_lines.size = 0
    for name, value in headers:
        action = action_of(name, RESPONSE_ACTIONS, response_spellings)
        if action < 0:
            return False
        value = value.rstrip(b" \t")
        if not is_clean(value):
            return False
        if action == PASS:
            add_line(&passed_lines, name, value)
        elif action == CONNECTION:
            named = named_by(value) if named is None else named | named_by(value)
        elif action == CONTENT_LENGTH:
            if head.content_length >= 0:
                return False
            head.content_length = read_length(value)
            if head.content_length < 0:
                return False
        elif action == TRANSFER_ENCODING:
            if head.chunked or value.lower() != b"chunked":
                return False            # a coding that nobody here undoes would corrupt the body
            head.chunked = True
        elif action != DROP:
            add_line(&passed_lines, name, value)
            note_answer(head, action, value)
    head.block = lines_of(&passed_lines)
    if named:
        head.block = without_named(head.block, named)
    return not (head.chunked and head.content_length >= 0)


cdef int note_answer(ResponseHead head, int action, bytes value) except -1:
    if action == CONTENT_TYPE:
        head.event_stream = value[:17].lower() == b"text/event-stream"
    elif action == CONTENT_ENCODING:
        if value.lower() != b"identity":
            head.content_encoding = value
    elif action == RETRY_AFTER:
        head.retry_after = value
    elif action == RETRY_AFTER_MS:
        head.retry_after_ms = value
    elif action == REQUEST_ID:
        head.request_id = value
    elif action == PLAIN_ID:
        head.has_plain_id = True
    elif action == ACCEL_BUFFERING:
        head.accel_buffering = True
    elif action == DATE:
        head.has_date = True
    elif action == RATE_LIMIT:
        head.has_rate_limits = True
    return 0
