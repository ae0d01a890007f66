"""How a connection to a worker is made.

Names are resolved off the dial path: an address that has been found is used at once and looked up again in
the background when it is older than `REFRESH_S`; a failed look-up keeps the last good answer.  All
addresses of a name are tried in turn within the connect timeout, starting with the one that worked last.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Any

from relayd._fast.leg import Connection, LegOutcome, Pool
from relayd.auth.files import read_plain
from relayd.config import WorkerTls
from relayd.readers import Remark, read_worker_url, refusal, split_url

if TYPE_CHECKING:
    from collections.abc import Coroutine

REFRESH_S = 30.0
CA = "worker_tls.ca"
LARGEST_CA = 16 << 20  # bytes; a system's bundle has 250 KB

Address = tuple[str, int]


class Endpoint:
    """Where a worker is: scheme, host, port, and the addresses found for them."""

    def __init__(self, url: str) -> None:
        read_worker_url(url)
        scheme, self.host, port, _ = split_url(url)
        self.tls = scheme == "https"
        self.port = port or (443 if self.tls else 80)
        self.addresses: list[Address] = []
        self.resolved_at = 0.0

    @property
    def host_header(self) -> bytes:
        """The Host value that this worker expects."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.tls else 80
        return (name if self.port == default else f"{name}:{self.port}").encode("ascii")


class Dialer:
    """Makes connections to one worker, for its Pool."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, connect_timeout_s: float) -> None:
        self.endpoint = endpoint
        self.tls = tls
        self.connect_timeout_s = connect_timeout_s
        self.tasks: set[asyncio.Task[None]] = set()
        self.refreshing = False

    def dial(self, pool: Pool) -> None:
        """Start one connection for `pool`; it hears of the end."""
        self._start(self._dial(pool))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _dial(self, pool: Pool) -> None:
        try:
            async with asyncio.timeout(self.connect_timeout_s or None):
                connection = await self._connect(pool)
        except TimeoutError:
            pool.dial_failed(LegOutcome.LEG_CONNECT_TIMEOUT, "did not accept a connection in time")
        except ssl.SSLError as error:
            pool.dial_failed(LegOutcome.LEG_TLS, words_for_tls(error))
        except (OSError, UnicodeError) as error:
            pool.dial_failed(LegOutcome.LEG_CONNECT, words_for(error))
        except asyncio.CancelledError:
            pool.dial_failed(LegOutcome.LEG_CONNECT, "relayd is stopping")
            raise
        else:
            pool.dialed(connection)

    async def _connect(self, pool: Pool) -> Connection:
        addresses = await self._addresses()
        last: OSError | None = None
        share_s = self.connect_timeout_s / max(1, len(addresses))
        for index, (host, port) in enumerate(addresses):
            try:
                async with asyncio.timeout(share_s or None):
                    connection = await self._connect_to(pool, host, port)
            except ssl.SSLError:
                raise
            except OSError as error:  # TimeoutError is one
                last = error
                continue
            if index:
                self.endpoint.addresses = [(host, port), *addresses[:index], *addresses[index + 1 :]]
            return connection
        raise last or OSError("the name has no address")

    async def _connect_to(self, pool: Pool, host: str, port: int) -> Connection:
        loop = asyncio.get_running_loop()

        def make() -> Any:  # a Connection is a Protocol in all but name
            return Connection(pool)

        connection: Connection
        if self.tls is None:
            _, connection = await loop.create_connection(make, host, port)
            return connection
        _, connection = await loop.create_connection(
            make,
            host,
            port,
            ssl=self.tls,
            server_hostname=self.endpoint.host,
            ssl_handshake_timeout=max(self.connect_timeout_s, 1.0),
        )
        return connection

    async def _addresses(self) -> list[Address]:
        loop = asyncio.get_running_loop()
        if not self.endpoint.addresses:
            await self._resolve()
        elif loop.time() - self.endpoint.resolved_at > REFRESH_S and not self.refreshing:
            self.refreshing = True
            self._start(self._refresh())
        return self.endpoint.addresses

    async def _refresh(self) -> None:
        try:
            await self._resolve()
        except (OSError, UnicodeError):
            pass  # the last good answer stays
        finally:
            self.refreshing = False

    async def _resolve(self) -> None:
        endpoint = self.endpoint
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys((str(info[4][0]), endpoint.port) for info in found))
        working = [address for address in endpoint.addresses[:1] if address in addresses]
        endpoint.addresses = working + [address for address in addresses if address not in working]
        endpoint.resolved_at = loop.time()


def words_for(error: OSError | UnicodeError) -> str:
    """Return what went wrong, in a few words."""
    if isinstance(error, UnicodeError):
        return "its name is none that can be asked for"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ConnectionResetError):
        return "the connection was reset"
    return (error.strerror or str(error) or type(error).__name__).lower()


def words_for_tls(error: ssl.SSLError) -> str:
    """Return what was wrong with a handshake, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return "it does not speak TLS on this port; its URL should begin with http://"
    return (error.reason or "the handshake failed").lower().replace("_", " ")


def tls_context(settings: WorkerTls) -> ssl.SSLContext:
    """Return the context for workers whose URL begins with https://.

    Raises:
        SettingError: the file of authorities cannot be used.
    """
    if settings.ca:
        read_plain(CA, settings.ca, LARGEST_CA)
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
    except (OSError, ssl.SSLError):
        message = "it has no PEM certificate that can be read (BEGIN CERTIFICATE)"
        raise refusal(
            Remark(CA, message, "name the file of your authority's certificate", settings.ca)
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
