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
import time
from collections.abc import Callable, Sequence
from random import getrandbits
from typing import Any, cast

import msgspec
from aiohttp import http_parser, web

from relayd._fast.head import set_via
from relayd._fast.leg import Pool, Sweeper, now_ns
from relayd._fast.turn import Turn
from relayd.admin.app import make_app
from relayd.admin.status import Status
from relayd.auth.authenticator import Authenticator
from relayd.auth.material import Material, is_wanted, read_material
from relayd.config import Settings, WorkerSettings
from relayd.front.door import House
from relayd.front.paths import PathError, PathSocket
from relayd.front.tls import listener_context
from relayd.limits.tenants import Limiter
from relayd.net import fetch
from relayd.phases.account import Books
from relayd.phases.driver import Driver
from relayd.readers import SettingError, split_address
from relayd.records import Fleet, Model, Worker
from relayd.registry import plugin
from relayd.telemetry.access_log import open_log
from relayd.telemetry.metrics import Metrics
from relayd.upstream.breakers import is_resting
from relayd.upstream.dial import Dialer, Endpoint, tls_context
from relayd.upstream.discovery import Discovery

log = logging.getLogger("relayd")

BACKLOG = 4096
GOODBYE_S = 0.5  # for what was written last to go out
HANDSHAKE_S = 10.0  # for a client's TLS handshake


class ListenError(Exception):
    """An address cannot be listened on; `temporary` if it is only in use."""

    def __init__(self, message: str, temporary: bool) -> None:
        super().__init__(message)
        self.temporary = temporary


class Gateway:
    """One relayd."""

    def __init__(
        self, settings: Settings, worker_urls: Sequence[tuple[str, str]], *, told: bool = False
    ) -> None:
        """Prepare everything that needs no loop; `worker_urls` are (name, URL) pairs.

        `told`: who read the settings has told of what is doubtful in them.

        Raises:
            SettingError: a setting or a URL cannot be used.
        """
        check_parser()
        self.settings = settings
        self._told = told
        try:
            self.policy = plugin("routing", settings.policy)()
        except KeyError as error:
            raise SettingError(f"policy: {error.args[0]}") from None
        self.endpoints = [(name, url.rstrip("/"), Endpoint(url)) for name, url in worker_urls]
        if len({name for name, _, _ in self.endpoints}) < len(self.endpoints):
            raise SettingError("two workers have the same name; name them apart with --worker NAME=URL")
        needs_tls = any(endpoint.tls for _, _, endpoint in self.endpoints)
        self.tls = tls_context(settings.worker_tls) if needs_tls else None
        self.listener_tls = listener_context(settings.tls)
        self.authenticator = make_authenticator(settings)
        self.pseudonym = b"relayd-%08x" % getrandbits(32)
        self.access_log = open_log(settings.log.sinks) if settings.log.sinks else None
        self.dialers: list[Dialer] = []
        self.workers: list[Worker] = []
        self.address = ""
        self.admin_address = ""
        self.draining = False
        self._admin: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._listen_path: PathSocket | None = None
        self._admin_path: PathSocket | None = None
        self._key_keeper: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._reload_wanted = False

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
        self.fleet = make_fleet(self.settings, self.workers)
        self.metrics = Metrics(self.workers, lambda worker: worker.up and not is_resting(worker, now_ns()))
        if self.access_log is not None:
            self.metrics.dropped_lines = self.access_log.dropped
        if self.authenticator is not None:
            self._warn(self.authenticator.warnings)
            self.metrics.unauthorized = self.authenticator.refused
            self.metrics.jwks_age_s = self._keys_age_s
        self.books = Books(self.metrics, self.fleet, self.access_log, self.pseudonym)
        self.discovery = Discovery(self.fleet, self.tls, log.warning)
        limiter = make_limiter(self.settings)
        self.driver = Driver(
            self.settings, self.fleet, self.policy, self.sweeper, self.books, self.discovery,
            self.authenticator, limiter,
        )  # fmt: skip
        self.status = Status(self.settings, self.workers, self.metrics, self.authenticator, limiter)
        self.house = House(self.driver, self.settings, self.turn)
        await self._listen(loop)
        await self._listen_admin()
        self.house.start_sweeping()
        if self.authenticator is not None:
            self._key_keeper = loop.create_task(self.authenticator.run())
        await self.discovery.ask_all()

    def _make_workers(self) -> None:
        connect_s = self.settings.resilience.timeouts.connect
        for name, url, endpoint in self.endpoints:
            dialer = Dialer(endpoint, self.tls if endpoint.tls else None, connect_s)
            self.dialers.append(dialer)
            pool = Pool(name, endpoint.host_header, dialer.dial, self.turn)
            self.sweeper.watch(pool)
            worker = Worker(name, url, pool)
            add_lines(worker, self.settings.workers.get(name))
            self.workers.append(worker)

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        listen = self.settings.listen
        options: dict[str, Any] = {"backlog": BACKLOG, "ssl": self.listener_tls}
        if self.listener_tls is not None:
            options["ssl_handshake_timeout"] = HANDSHAKE_S
        path = self._listen_path = open_path("listen", listen, self.settings.socket_mode)
        if path is not None:
            self._server = await loop.create_unix_server(cast(Any, self.house), sock=path.socket, **options)
            self.address = listen
            return
        try:
            host, port = split_address(listen)
            self._server = await loop.create_server(cast(Any, self.house), host, port, **options)
        except OSError as error:
            raise listen_error("listen", listen, error) from None
        self.address = shown(self._server.sockets[0].getsockname())

    async def _listen_admin(self) -> None:
        if self.settings.admin == "off":
            return
        self._admin = web.AppRunner(make_app(self.metrics, self._checks, self.status), access_log=None)
        await self._admin.setup()
        admin = self.settings.admin
        path = self._admin_path = open_path("admin", admin, self.settings.socket_mode)
        if path is not None:
            await web.SockSite(self._admin, path.socket).start()
            self.admin_address = admin
            return
        try:
            await web.TCPSite(self._admin, *split_address(admin)).start()
        except OSError as error:
            raise listen_error("admin", admin, error) from None
        self.admin_address = shown(self._admin.addresses[0])

    async def _checks(self) -> list[tuple[str, bool]]:
        if not any(worker.up for worker in self.workers):
            await self.discovery.look_at(self.workers)
        now = now_ns()
        usable = [worker.up and not is_resting(worker, now) for worker in self.workers]
        rows = [("accepting", not self.draining), ("workers", any(usable))]
        if self.authenticator is not None:
            rows.append(("keys", self.authenticator.ready))
        return rows

    async def drain(self) -> None:
        """Stop as a balancer would like it: not ready, then not accepting, then finish what runs."""
        self.draining = self.driver.draining = True
        log.info("stopping: %d requests are under way", self.metrics.in_flight)
        await asyncio.sleep(self.settings.drain_delay)
        self.stop_accepting()
        self.house.drain()
        try:
            async with asyncio.timeout(self.settings.drain_timeout or None):
                await self.house.empty.wait()
        except TimeoutError:
            log.warning("still open after drain_timeout: %d client connections", len(self.house.doors))

    def reload(self, reread: Callable[[], Settings] | None) -> None:
        """Begin to take new keys and limits; while that goes on, further calls come to one more."""
        self._reload_wanted = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reload(reread))

    async def _reload(self, reread: Callable[[], Settings] | None) -> None:
        while self._reload_wanted:
            self._reload_wanted = False
            try:
                # On another thread: a file with many keys takes seconds to read.
                settings, material = await asyncio.to_thread(self._read_again, reread)
            except SettingError as error:
                self.metrics.reload_failed = True
                log.error("the settings stay as they are: %s", error)
            else:
                self._take_over(settings, material)

    def _read_again(self, reread: Callable[[], Settings] | None) -> tuple[Settings, Material | None]:
        settings = self.settings if reread is None else reread()
        return settings, read_material(settings.auth) if self.authenticator is not None else None

    def _take_over(self, settings: Settings, material: Material | None) -> None:
        """Take what can change while relayd runs; what is under way goes on."""
        kept = needs_restart(self.settings, settings)
        changed: dict[str, Any] = {}
        if self.authenticator is not None and material is not None and is_wanted(settings.auth):
            self.authenticator.adopt(material)
            self._warn(material.warnings)
            changed["auth"] = settings.auth
        tiers = settings.limits.tiers
        if self.driver.limiter is not None and tiers:
            self.driver.limiter.reload(tiers, now_ns())
            changed["limits"] = msgspec.structs.replace(self.settings.limits, tiers=tiers)
        self.settings = msgspec.structs.replace(self.settings, **changed)
        self.status.show(self.settings, kept)
        self.metrics.reload_failed = False
        log.info("settings read again%s", f"; a restart is needed for: {', '.join(kept)}" if kept else "")

    def _warn(self, texts: Sequence[str]) -> None:
        for text in () if self._told else texts:
            log.warning("%s", text)

    def _keys_age_s(self) -> float | None:
        known = self.authenticator is not None and self.authenticator.source is not None
        return self.authenticator.keys_age_s if known and self.authenticator is not None else None

    def reopen_logs(self) -> None:
        """Open log files anew: they have been moved away."""
        if self.access_log is not None:
            self.access_log.reopen()
            log.info("log files opened anew")

    def stop_accepting(self) -> None:
        """Close the listener; open connections stay."""
        if self._listen_path is not None:
            self._listen_path.remove()
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """Cut what is left and give everything back."""
        self.draining = True
        self.stop_accepting()
        if self._reloading is not None:
            self._reloading.cancel()
        self.house.drain()
        self.house.shutdown()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self.house.empty.wait()
        except TimeoutError:
            pass  # whoever does not take the end of what it was sent
        self.discovery.close()
        if self._key_keeper is not None and self.authenticator is not None:
            self._key_keeper.cancel()
            self.authenticator.close()
        for worker in self.workers:
            worker.pool.close_idle(1 << 62)
        self.sweeper.close()
        if self.access_log is not None:
            self.access_log.close()
        if self._admin_path is not None:
            self._admin_path.remove()
        if self._admin is not None:
            await self._admin.cleanup()


def make_fleet(settings: Settings, workers: Sequence[Worker]) -> Fleet:
    """Return the fleet of the settings' models; without any, models are those that workers list."""
    by_name = {worker.name: worker for worker in workers}
    declared: dict[str, Model] = {}
    for name, model in settings.models.items():
        names = {target.worker: target.model for target in model.targets if target.model}
        made = Model(name, [by_name[target.worker] for target in model.targets], names)
        declared.update(dict.fromkeys((name, *model.aliases), made))
    prefixes = sorted(settings.passthrough.items(), key=lambda pair: -len(pair[0]))
    return Fleet(workers, declared, [(prefix.encode(), declared[model]) for prefix, model in prefixes])


def add_lines(worker: Worker, settings: WorkerSettings | None) -> None:
    """Note the credential and the further head lines that every request to `worker` has."""
    if settings is None:
        return
    lines = [(name, value.reveal()) for name, value in settings.headers.items()]
    if settings.key and settings.dialect == "anthropic":
        lines.append(("X-Api-Key", settings.key.reveal()))
    elif settings.key:
        lines.append(("Authorization", f"Bearer {settings.key.reveal()}"))
    worker.lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in lines)
    worker.has_key = bool(settings.key)
    worker.line_names = frozenset(name.lower().encode() for name, _ in lines)


def make_authenticator(settings: Settings) -> Authenticator | None:
    """Return what checks credentials, or None where everybody may ask.

    Raises:
        SettingError: a key or a file of keys cannot be used.
    """
    if not is_wanted(settings.auth):
        return None
    return Authenticator(settings.auth, fetch=fetch_keys)


async def fetch_keys(url: str, timeout_s: float) -> tuple[int, bytes]:
    """Return (status, body) of a URL with keys."""
    return await fetch(url, timeout_s=timeout_s)


def make_limiter(settings: Settings) -> Limiter | None:
    """Return what counts for tenants, or None where nothing is limited."""
    tiers = settings.limits.tiers
    return Limiter(tiers, now_ns(), time.time()) if tiers else None


def open_path(setting: str, address: str, mode: int) -> PathSocket | None:
    """Return the listening socket of `unix:PATH`, None for another address.

    Raises:
        ListenError: it cannot be had.
    """
    if not address.startswith("unix:"):
        return None
    try:
        return PathSocket(address[5:], mode)
    except PathError as error:
        raise ListenError(f"{setting}: {address}: {error}", error.temporary) from None


def needs_restart(old: Settings, new: Settings) -> list[str]:
    """Return the settings that have changed and that only a restart brings in."""
    changed = [name for name in old.__struct_fields__ if getattr(old, name) != getattr(new, name)]
    taken = set()
    if bool(old.limits.tiers) == bool(new.limits.tiers) and old.limits.per_address == new.limits.per_address:
        taken.add("limits")
    if is_wanted(old.auth) == is_wanted(new.auth):
        taken.add("auth")
    return [name for name in changed if name not in taken]


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


async def serve(
    gateway: Gateway, ready: Callable[[Gateway], None], reread: Callable[[], Settings] | None = None
) -> int:
    """Run `gateway` until a signal ends it; return the exit code.

    TERM drains and then stops; INT stops; a second signal of either kind stops at once.  HUP reads keys and
    limits again, with `reread` where there is a file; USR1 opens log files anew.
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
    loop.add_signal_handler(signal.SIGHUP, lambda: gateway.reload(reread))
    loop.add_signal_handler(signal.SIGUSR1, gateway.reopen_logs)
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
