"""What settings, and the files they name, come to: tried by the functions with which `relayd serve` begins.

So nothing is right here and wrong there.  What is left out is what only a running relayd can know: whether an
address is free, and what a URL answers.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from functools import partial

from relayd.auth.base import DEFAULT_TIER
from relayd.auth.keys import read_keys
from relayd.auth.material import SOURCES, read_ring
from relayd.config import Jwt, Tls, WorkerTls
from relayd.front.paths import PathError, has_socket
from relayd.front.tls import listener_context, remarks_on_pair
from relayd.readers import Remark, SettingError, refusal
from relayd.settings_file.checks import View
from relayd.settings_file.problems import Path, Place
from relayd.upstream.dial import tls_context

Part = Callable[[], Iterable[Remark]]  # makes a part and returns what is to be said of it
Say = Callable[[Place, Path, str, str], None]


def check_parts(view: View) -> None:
    """Report every part that cannot be made, and what is doubtful about the others."""
    for make in parts_of(view):
        try:
            remarks = list(make())
        except SettingError as error:
            report(view, view.problems.error, error.remarks)
        else:
            report(view, view.problems.warn, remarks)


def parts_of(view: View) -> Iterator[Part]:
    """Yield the parts whose settings are right, each by itself, so far."""
    settings, is_right = view.settings, view.is_right
    auth, tls, worker_tls = settings.auth, settings.tls, settings.worker_tls
    if auth.keys and is_right("auth", "keys"):
        served = {name for model, entry in settings.models.items() for name in (model, *entry.aliases)}
        yield partial(try_keys, auth.keys, settings.limits.tiers, served, time.time())
    has_jwt = auth.jwt != Jwt() or view.is_written("auth", "jwt")
    if has_jwt and all(is_right("auth", "jwt", name) for name in SOURCES):
        yield partial(try_jwt, auth.jwt)
    if is_right("tls"):
        yield partial(try_tls, tls)
    if worker_tls.ca and is_right("worker_tls", "ca"):
        yield partial(try_authorities, worker_tls)
    for index, sink in enumerate(settings.log.sinks):
        if sink.startswith("file:") and is_right("log", "sinks", index):
            yield partial(look_at_sink, f"log.sinks.{index}", sink.removeprefix("file:"))
    for name in ("listen", "admin"):
        address = getattr(settings, name)
        if address.startswith("unix:") and is_right(name):
            yield partial(look_at_socket, name, address.removeprefix("unix:"))


def report(view: View, say: Say, remarks: Iterable[Remark]) -> None:
    """Say remarks where the settings that they are about stand."""
    for remark in remarks:
        names = remark.setting.split(".") if remark.setting else []
        path = tuple(int(name) if name.isdecimal() else name for name in names)
        file = view.file(path, remark.file) if remark.file else ""
        where = ":".join(filter(None, (file, remark.at)))
        say(view.place(path), path, ": ".join(filter(None, (where, remark.message))), remark.hint)


# --- one by one -------------------------------------------------------------------------------------


def try_keys(path: str, tiers: Collection[str], served: Set[str], now: float) -> Iterable[Remark]:
    """Read the file of API keys; where tiers, or models, are declared, keys name one of them."""
    keys = read_keys(path)
    yield from keys.remarks
    named = {granted.tenant.tier for granted in keys.by_digest.values()}
    unknown = sorted(named - {*tiers, DEFAULT_TIER}) if tiers else []
    if unknown:
        message = f"it has keys of a tier that limits.tiers does not have: {', '.join(unknown[:5])}"
        yield Remark("auth.keys", message, "they have the limits of `default`", path)
    over = sum(granted.ends_at <= now for granted in keys.by_digest.values())
    if over:
        yield Remark("auth.keys", f"{over} of its keys have expired", "take them out", path)
    asked = {name for granted in keys.by_digest.values() for name in granted.tenant.models or ()}
    unknown = sorted(asked - served) if served else []
    if unknown:
        message = f"it has keys for models that are not served: {', '.join(unknown[:5])}"
        yield Remark("auth.keys", message, "models has no such name or alias", path)


def try_jwt(jwt: Jwt) -> Iterable[Remark]:
    """Read the keys that tokens are checked with; a URL is not asked."""
    remarks: list[Remark] = []
    read_ring(jwt, remarks)
    return remarks


def try_tls(tls: Tls) -> Iterable[Remark]:
    """Read the certificate and its key."""
    listener_context(tls)
    return remarks_on_pair(tls, datetime.datetime.now(datetime.UTC))


def try_authorities(worker_tls: WorkerTls) -> Iterable[Remark]:
    """Read the certificates of those whom workers' certificates are by."""
    tls_context(worker_tls)
    return ()


def look_at_sink(setting: str, path: str) -> Iterable[Remark]:
    """Look whether lines could be written, without making the file."""
    directory = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise refusal(
            Remark(setting, "it is a directory", "write file:PATH with the name of a file in it", path)
        )
    if not os.path.isdir(directory):
        raise refusal(Remark(setting, "there is no such directory to write to", "make it", path))
    if not os.access(path if os.path.exists(path) else directory, os.W_OK):
        raise refusal(Remark(setting, "nothing can be written there", "check who owns it", path))
    return ()


def look_at_socket(setting: str, path: str) -> Iterable[Remark]:
    """Look at what is where a socket is to be made; its directory may be made with the service."""
    directory = os.path.dirname(path)
    try:
        has_socket(path)
    except PathError as error:
        raise refusal(Remark(setting, str(error), file=path)) from None
    if not os.path.isdir(directory):
        hint = "make it; in a systemd unit RuntimeDirectory= makes one in /run"
        return [Remark(setting, "there is no such directory now", hint, directory)]
    return ()
