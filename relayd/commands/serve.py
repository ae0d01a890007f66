"""relayd serve: the gateway."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys

import uvloop

from relayd.config import Settings, apply
from relayd.readers import SettingError, read_worker_url
from relayd.server import Gateway, ListenError, raise_descriptor_limit, serve
from relayd.settings_file import load
from relayd.settings_file.checks import exposures

HELP = "relay requests to inference servers"
EXIT_SETTINGS = 1

log = logging.getLogger("relayd")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", metavar="FILE", help="the settings file (see `relayd check`)")
    source.add_argument(
        "--worker",
        action="append",
        metavar="[NAME=]URL",
        help="an inference server, such as http://10.0.0.11:8000; may be repeated",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="where clients connect (127.0.0.1:8080)")
    parser.add_argument("--admin", metavar="HOST:PORT|off", help="health and metrics (127.0.0.1:9901)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting by its path, such as resilience.timeouts.idle=30s; may be repeated",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="listen beyond this machine although nobody is authenticated"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="relayd: %(message)s")
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    try:
        settings = read_settings(args)
        gateway = Gateway(settings, workers_of(args, settings), told=args.config is not None)
    except SettingError as error:
        print(f"relayd: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    raise_descriptor_limit()
    try:
        reread = (lambda: read_settings(args)) if args.config is not None else None
        return uvloop.run(serve(gateway, say_ready, reread))
    except ListenError as error:
        print(f"relayd: {error}", file=sys.stderr)
        return os.EX_TEMPFAIL if error.temporary else EXIT_SETTINGS


def read_settings(args: argparse.Namespace) -> Settings:
    """Return the settings that the command line asks for.

    Raises:
        SettingError: one of them cannot be used.
    """
    names = [name for name in ("listen", "admin") if getattr(args, name) is not None]
    assignments = [*args.set, *(f"{name}={getattr(args, name)}" for name in names)]
    if args.config is not None:
        return load(args.config, assignments, insecure=args.insecure, on_warning=log.warning)
    settings = Settings()
    for assignment in assignments:
        settings = apply(settings, assignment)
    refuse_exposure(settings, args.insecure)
    return settings


def workers_of(args: argparse.Namespace, settings: Settings) -> list[tuple[str, str]]:
    """Return (name, URL) of each worker: those of the file, or those of the command line.

    Raises:
        SettingError: a name or a URL of the command line cannot be used.
    """
    if args.config is not None:
        return [(name, worker.url) for name, worker in settings.workers.items()]
    workers = [read_worker(text) for text in args.worker]
    for _, url in workers:
        try:
            read_worker_url(url)
        except SettingError as error:
            raise SettingError(f"--worker: {error}") from None
    return workers


def refuse_exposure(settings: Settings, insecure: bool) -> None:
    """Raise a SettingError if anybody on the network could use what nobody can, or what is not guarded."""
    if settings.listen == "off":
        raise SettingError("listen: off would serve nobody; write HOST:PORT")
    for name, message in [] if insecure else exposures(settings):
        raise SettingError(
            f"{name}: {getattr(settings, name)} {message}; "
            "choose an address on 127.0.0.1, or say --insecure if that is what you want"
        )


def read_worker(text: str) -> tuple[str, str]:
    """Return (name, URL) of `URL` or `NAME=URL`; a worker without a name is called by its address."""
    name, equals, url = text.partition("=")
    if equals and "/" not in name:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            raise SettingError(f"--worker {text}: a name is letters, digits, dots and dashes")
        return name, url
    return text.partition("://")[2].rstrip("/"), text


def say_ready(gateway: Gateway) -> None:
    """Tell a person, and whoever waits for it, where to connect."""
    parts = [f"listening on {shown(gateway.address, 'https' if gateway.listener_tls else 'http')}"]
    if gateway.admin_address:
        parts.append(f"admin on {shown(gateway.admin_address, 'http')}")
    print(f"relayd: {', '.join(parts)}", file=sys.stderr, flush=True)


def shown(address: str, scheme: str) -> str:
    """Return an address as a person can use it."""
    return address if address.startswith("unix:") else f"{scheme}://{address}"
