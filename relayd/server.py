"""Puts the parts together: listen, serve, drain.

A Gateway is one relayd in one process: its settings, its workers, its driver and its two listeners.  There
may be several in one process (tests have); nothing is global but the clock.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
from collections.abc import Callable, Sequence
from random import getrandbits
from typing import Any, cast

from aiohttp import http_parser, web

from relayd._fast.head import set_via
from relayd._fast.leg import Pool, Sweeper, now_ns
from relayd._fast.turn import Turn
from relayd.admin.app import make_app
from relayd.config import Settings
from relayd.front.door import House
from relayd.phases.account import Books
from relayd.phases.driver import Driver
from relayd.readers import SettingError, split_address
from relayd.records import Fleet, Worker
from relayd.registry import plugin
from relayd.telemetry.access_log import AccessLog
from relayd.telemetry.metrics import Metrics
from relayd.upstream.breakers import is_resting
from relayd.upstream.dial import Dialer, Endpoint, tls_context
from relayd.upstream.discovery import Discovery

log = logging.getLogger("relayd")

BACKLOG = 4096


class ListenError(Exception):
    """An address cannot be listened on; `temporary` if it is only in use."""

    def __init__(self, message: str, temporary: bool) -> None:
        super().__init__(message)
        self.temporary = temporary


class Gateway:
    """One relayd."""

    def __init__(self, settings: Settings, worker_urls: Sequence[tuple[str, str]]) -> None:
        """Prepare everything that needs no loop; `worker_urls` are (name, URL) pairs.

        Raises:
            SettingError: a setting or a URL cannot be used.
        """
        check_parser()
        self.settings = settings
        try:
            self.policy = plugin("routing", settings.policy)()
        except KeyError as error:
            raise SettingError(f"policy: {error.args[0]}") from None
        self.endpoints = [(name, url.rstrip("/"), Endpoint(url)) for name, url in worker_urls]
        if len({name for name, _, _ in self.endpoints}) < len(self.endpoints):
            raise SettingError("two workers have the same name; name them apart with --worker NAME=URL")
        needs_tls = any(endpoint.tls for _, _, endpoint in self.endpoints)
        self.tls = tls_context(settings.worker_tls) if needs_tls else None
        self.pseudonym = b"relayd-%08x" % getrandbits(32)
        self.dialers: list[Dialer] = []
        self.workers: list[Worker] = []
        self.address = ""
        self.admin_address = ""
        self.draining = False
        self._admin: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen and learn what the workers serve.

        Raises:
            ListenError: an address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        set_via(self.pseudonym)
        self.turn = Turn(loop)
        self.sweeper = Sweeper(loop)
        self._make_workers()
        self.fleet = Fleet(self.workers)
        self.metrics = Metrics(self.workers, lambda worker: worker.up and not is_resting(worker, now_ns()))
        self.access_log = AccessLog(on_drop=self._log_dropped) if self.settings.log.sinks else None
        self.books = Books(self.metrics, self.fleet, self.access_log, self.pseudonym)
        self.discovery = Discovery(self.fleet, self.tls, log.warning)
        self.driver = Driver(self.settings, self.fleet, self.policy, self.sweeper, self.books, self.discovery)
        self.house = House(self.driver, self.settings, self.turn)
        await self._listen(loop)
        await self._listen_admin()
        self.house.start_sweeping()
        await self.discovery.ask_all()

    def _make_workers(self) -> None:
        connect_s = self.settings.resilience.timeouts.connect
        for name, url, endpoint in self.endpoints:
            dialer = Dialer(endpoint, self.tls if endpoint.tls else None, connect_s)
            self.dialers.append(dialer)
            pool = Pool(name, endpoint.host_header, dialer.dial, self.turn)
            self.sweeper.watch(pool)
            self.workers.append(Worker(name, url, pool))

    def _log_dropped(self, lines: int) -> None:
        self.metrics.dropped_log_lines += lines

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        host, port = split_address(self.settings.listen)
        try:
            self._server = await loop.create_server(cast(Any, self.house), host, port, backlog=BACKLOG)
        except OSError as error:
            raise listen_error("listen", self.settings.listen, error) from None
        self.address = shown(self._server.sockets[0].getsockname())

    async def _listen_admin(self) -> None:
        if self.settings.admin == "off":
            return
        host, port = split_address(self.settings.admin)
        self._admin = web.AppRunner(make_app(self.metrics, self._checks), access_log=None)
        await self._admin.setup()
        try:
            await web.TCPSite(self._admin, host, port).start()
        except OSError as error:
            raise listen_error("admin", self.settings.admin, error) from None
        self.admin_address = shown(self._admin.addresses[0])

    async def _checks(self) -> list[tuple[str, bool]]:
        if not any(worker.up for worker in self.workers):
            await self.discovery.look_at(self.workers)
        now = now_ns()
        usable = [worker.up and not is_resting(worker, now) for worker in self.workers]
        return [("accepting", not self.draining), ("workers", any(usable))]

    async def drain(self) -> None:
        """Stop as a balancer would like it: not ready, then not accepting, then finish what runs."""
        self.draining = self.driver.draining = True
        await asyncio.sleep(self.settings.drain_delay)
        self.stop_accepting()
        self.house.drain()
        try:
            async with asyncio.timeout(self.settings.drain_timeout or None):
                await self.house.empty.wait()
        except TimeoutError:
            log.warning("still open after drain_timeout: %d client connections", len(self.house.doors))

    def stop_accepting(self) -> None:
        """Close the listener; open connections stay."""
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """Cut what is left and give everything back."""
        self.draining = True
        self.stop_accepting()
        self.house.shutdown()
        self.discovery.close()
        for worker in self.workers:
            worker.pool.close_idle(1 << 62)
        self.sweeper.close()
        if self.access_log is not None:
            self.access_log.close()
        if self._admin is not None:
            await self._admin.cleanup()


def check_parser() -> None:
    """Refuse to run on aiohttp's Python parser: it accepts what llhttp refuses.

    Raises:
        SettingError: aiohttp was installed without its compiled parser.
    """
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise SettingError(
            "aiohttp runs without its compiled parser; unset AIOHTTP_NO_EXTENSIONS and install its wheel"
        )


def listen_error(setting: str, address: str, error: OSError) -> ListenError:
    """Return the error for an address that cannot be listened on."""
    if error.errno == errno.EADDRINUSE or "in use" in str(error):
        hint = f"{setting}: {address} is in use already; choose another with --{setting} HOST:PORT"
        return ListenError(hint, True)
    if error.errno == errno.EACCES:
        return ListenError(f"{setting}: {address} needs privileges; choose a port above 1023", False)
    return ListenError(f"{setting}: cannot listen on {address}: {error.strerror or error}", False)


def shown(address: tuple[str, int] | Sequence[object]) -> str:
    """Return HOST:PORT of a socket's address."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def raise_descriptor_limit() -> None:
    """Allow as many open sockets as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        pass  # what there is must do


def settle_garbage() -> None:
    """Leave what start-up made out of every later collection, and collect less often.

    Requests make few cycles; with Python's defaults the collector took 2-3 us of each one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def serve(gateway: Gateway, ready: Callable[[Gateway], None]) -> int:
    """Run `gateway` until a signal ends it; return the exit code.

    TERM drains and then stops; INT stops; a second signal of either kind stops at once.
    """
    loop = asyncio.get_running_loop()
    stop_now, drain = asyncio.Event(), asyncio.Event()

    def on_term() -> None:
        (stop_now if drain.is_set() else drain).set()

    def on_int() -> None:
        stop_now.set()
        drain.set()

    loop.add_signal_handler(signal.SIGTERM, on_term)
    loop.add_signal_handler(signal.SIGINT, on_int)
    try:
        await gateway.start()
        settle_garbage()
        ready(gateway)
        await drain.wait()
        if not stop_now.is_set():
            draining = loop.create_task(gateway.drain())
            stopping = loop.create_task(stop_now.wait())
            await asyncio.wait((draining, stopping), return_when=asyncio.FIRST_COMPLETED)
            draining.cancel()
            stopping.cancel()
    finally:
        await gateway.stop()
    return os.EX_OK
