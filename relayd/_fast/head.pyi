from collections.abc import Sequence
from enum import IntEnum

class HeadFault(IntEnum):
    HEAD_OK = 0
    HEAD_BAD_METHOD = 1
    HEAD_BAD_VERSION = 2
    HEAD_BAD_TARGET = 3
    HEAD_BAD_HOST = 4
    HEAD_BAD_NAME = 5
    HEAD_BAD_VALUE = 6
    HEAD_BAD_LENGTH = 7
    HEAD_BAD_CODING = 8
    HEAD_BAD_CREDENTIAL = 9
    HEAD_BAD_EXPECT = 10
    HEAD_LOOP = 11
    HEAD_BAD_WISH = 12

class Priority(IntEnum):
    PRIORITY_CRITICAL = 0
    PRIORITY_INTERACTIVE = 1
    PRIORITY_DEFAULT = 2
    PRIORITY_BATCH = 3

class RequestHead:
    def __init__(
        self, method: str, target: bytes, version_minor: int, headers: Sequence[tuple[bytes, bytes]]
    ) -> None: ...
    fault: int
    method: str
    target: bytes
    path: bytes
    host: bytes | None
    content_type: bytes | None
    content_encoding: bytes | None
    accept_encoding: bytes | None
    forwarded_for: bytes | None
    forwarded_proto: bytes | None
    request_id: bytes
    traceparent: bytes
    authorization: bytes | None
    api_key: bytes | None
    bad_name: bytes | None
    size: int
    content_length: int
    chunked: bool
    expect_continue: bool
    timeout_ms: int
    priority: int
    anthropic: bool
    def for_worker(
        self,
        host: bytes,
        client: bytes,
        stream: bool,
        with_credentials: bool,
        length: int,
        without: frozenset[bytes] | None = None,
    ) -> bytes: ...

class ResponseHead:
    valid: bool
    block: bytes
    content_encoding: bytes | None
    retry_after: bytes | None
    retry_after_ms: bytes | None
    request_id: bytes | None
    has_plain_id: bool
    event_stream: bool
    has_date: bool
    accel_buffering: bool
    has_rate_limits: bool
    chunked: bool
    content_length: int

def set_via(pseudonym: bytes) -> None: ...
def read_response_head(headers: list[tuple[bytes, bytes]]) -> ResponseHead: ...
def is_one_message(data: bytes) -> bool: ...
def http_date() -> bytes: ...
def random_hex(words: int) -> bytes: ...
def rate_lines(what: bytes, most: int, left: int, full_in_ns: int) -> bytes: ...
