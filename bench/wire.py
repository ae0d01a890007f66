"""The bytes the load sends: what an OpenAI client would, 1.5 KB of chat.

The upstream reads its orders from the body ("stream", "max_tokens", "bench_gap_ms"), since that is what every
gateway passes on unchanged.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

import jwt

from bench.faults import BenchFault

BODY_BYTES = 1500
ANSWER_BYTES = 592  # bench/native/upstream.c, ANSWER_BYTES
STREAM_SENDS = 64  # chunks of a stream; the first carries two events
STREAM_EVENTS = STREAM_SENDS + 1
STREAM_GAP_MS = 10
SLOW_GAP_MS = 1000
ENDLESS = 1_000_000

PROSE = (
    "You are a careful assistant. Answer from the documents below, cite the passage you used, and say so "
    "when they do not contain the answer. "
)

# What version 3 of the SDK sends beyond the nine that bear meaning: facts about the client.
SDK_HEADERS = (
    ("x-stainless-package-version", "3.57.0"),
    ("x-stainless-os", "Linux"),
    ("x-stainless-arch", "x64"),
    ("x-stainless-runtime", "CPython"),
    ("x-stainless-runtime-version", "3.11.7"),
    ("x-stainless-async", "false"),
    ("x-stainless-retry-count", "0"),
    ("x-stainless-read-timeout", "600"),
)


@dataclass(frozen=True)
class Address:
    """Where a gateway listens, and the path before `/chat/completions`."""

    host: str
    port: int
    prefix: str = "/v1"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.authority}"


def parse_url(url: str) -> Address:
    """Returns the address in `http://HOST[:PORT][/PATH]`; a path that does not end in /v1 gets it."""
    scheme, _, rest = url.partition("://")
    if scheme != "http" or not rest:
        raise BenchFault(
            f"'{url}' cannot be measured: give http://HOST:PORT (the load speaks plain HTTP only)", 2
        )
    authority, _, path = rest.partition("/")
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, "80"
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BenchFault(f"'{url}' has no usable port: give http://HOST:PORT", 2)
    prefix = "/" + path.strip("/") if path.strip("/") else ""
    return Address(host.strip("[]"), int(port), prefix if prefix.endswith("/v1") else prefix + "/v1")


# The token that every gateway gets; `guarded` checks it.
SECRET = "of no use to anybody beyond this machine"
ISSUER = "https://bench.test/"
TOKEN_S = 6 * 3600


def token() -> str:
    """Return a token that is good for the time of a run."""
    claims = {"iss": ISSUER, "aud": "relayd", "sub": "bench", "exp": int(time.time()) + TOKEN_S}
    return jwt.encode(claims, SECRET, algorithm="HS256")


@dataclass(frozen=True)
class Client:
    """Who asks: the model it names, its key, and how many headers it sends."""

    model: str = "bench"
    key: str = field(default_factory=token)
    all_headers: bool = False

    def plain(self, address: Address) -> bytes:
        """One chat completion, answered whole."""
        return self._request(address, {})

    def stream(self, address: Address, sends: int = STREAM_SENDS, gap_ms: int = STREAM_GAP_MS) -> bytes:
        """One chat completion, streamed in `sends` pieces `gap_ms` apart."""
        return self._request(address, {"stream": True, "max_tokens": sends, "bench_gap_ms": gap_ms})

    def slow_stream(self, address: Address) -> bytes:
        """A stream that does not end while anyone looks at it."""
        return self.stream(address, ENDLESS, SLOW_GAP_MS)

    def _request(self, address: Address, orders: dict[str, object]) -> bytes:
        body = self._body(orders)
        headers = [
            ("host", address.authority),
            ("accept-encoding", "gzip, deflate"),
            ("connection", "keep-alive"),
            ("authorization", f"Bearer {self.key}"),
            ("accept", "application/json"),
            ("content-type", "application/json"),
            ("user-agent", "OpenAI/Python 3.57.0"),
            ("x-stainless-lang", "python"),
            *(SDK_HEADERS if self.all_headers else ()),
            ("content-length", str(len(body))),
        ]
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        return f"POST {address.prefix}/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body

    def _body(self, orders: dict[str, object]) -> bytes:
        def encode(question: str) -> bytes:
            messages = [{"role": "system", "content": PROSE.strip()}, {"role": "user", "content": question}]
            return json.dumps(
                {"model": self.model, "messages": messages, "temperature": 0.7, **orders}
            ).encode()

        missing = max(0, BODY_BYTES - len(encode("")))
        return encode((PROSE * (missing // len(PROSE) + 1))[:missing])
