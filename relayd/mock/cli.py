"""The command line of the mock: flags to settings, and a process that serves until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import errno
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from relayd.mock import faults, units
from relayd.mock.profiles import PROFILES
from relayd.mock.server import ENGINES, MockServer, Settings

HELP = "run a simulated inference server, for development, tests and benchmarks"

EXIT_USAGE = 2
EXIT_PORT_IN_USE = 75
EXIT_FAILED = 1

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags on `parser`."""
    add = parser.add_argument
    add("--listen", type=_checked(units.parse_address), default=("127.0.0.1", 8000), metavar="HOST:PORT",
        help="where to listen (default 127.0.0.1:8000; port 0: any free one)")  # fmt: skip
    add("--engine", choices=ENGINES, default="vllm", help="whose bodies and events to send (default vllm)")
    add("--model", action="append", metavar="NAME", help="a model to serve; repeatable (default mock)")
    add("--any-model", action="store_true", help="answer for every model name instead of 404")
    add("--gpu", choices=tuple(PROFILES), default="a100", help="how fast to be (default a100)")
    add("--ttft", type=_checked(units.parse_duration_s), metavar="DURATION",
        help="time to the first token, instead of the GPU's; 50ms, 2s, 0")  # fmt: skip
    add("--itl", type=_checked(units.parse_duration_s), metavar="DURATION",
        help="time between tokens, instead of the GPU's")  # fmt: skip
    add(
        "--max-num-seqs",
        type=_checked(_positive),
        metavar="N",
        help="answers written at once (default: the GPU's)",
    )
    add(
        "--kv-tokens", type=_checked(_positive), metavar="N", help="size of the KV cache (default: the GPU's)"
    )
    add("--max-model-len", type=_checked(_positive), default=32_768, metavar="N",
        help="longest prompt and answer together, in tokens (default 32768)")  # fmt: skip
    add("--output-tokens", type=_checked(units.parse_range), default=(32, 256), metavar="N|LOW-HIGH",
        help="length of an answer that the request does not limit (default 32-256)")  # fmt: skip
    add("--seed", type=int, metavar="N", help="make lengths, texts and random faults repeatable")
    add("--ping", type=_checked(_period), default=10.0, metavar="DURATION",
        help="how often a silent Anthropic stream is pinged (default 10s)")  # fmt: skip
    add("--fault", type=_checked(faults.parse_flag), action="append", default=[], metavar="KIND[=VALUE][@P]",
        help="a fault, with its probability; repeatable: " + ", ".join(faults.KINDS))  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    host, port = args.listen
    settings = Settings(
        host=host,
        port=port,
        engine=args.engine,
        models=tuple(args.model or ["mock"]),
        any_model=args.any_model,
        gpu=args.gpu,
        ttft_s=args.ttft,
        itl_s=args.itl,
        max_num_seqs=args.max_num_seqs,
        kv_tokens=args.kv_tokens,
        max_model_len=args.max_model_len,
        output_tokens=args.output_tokens,
        seed=args.seed,
        ping_s=args.ping,
        chances=tuple(args.fault),
    )
    _raise_file_limit()
    try:
        import uvloop

        return uvloop.run(_serve(settings))
    except ImportError:
        return asyncio.run(_serve(settings))
    except KeyboardInterrupt:
        return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m relayd.mock`."""
    parser = argparse.ArgumentParser(prog="relayd mock", description=HELP[0].upper() + HELP[1:] + ".")
    add_arguments(parser)
    return run(parser.parse_args(argv))


async def _serve(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    mock = MockServer(settings)
    try:
        await mock.start()
    except OSError as error:
        return _cannot_listen(settings, error)
    print(
        f"relayd mock: listening on {mock.url} "
        f"(engine {settings.engine}, gpu {settings.gpu}, model {', '.join(settings.models)})",
        file=sys.stderr,
        flush=True,
    )
    await stop.wait()
    await mock.stop()
    return 0


def _cannot_listen(settings: Settings, error: OSError) -> int:
    in_use = error.errno == errno.EADDRINUSE
    what = "the address is in use" if in_use else (error.strerror or str(error))
    address = f"{settings.host}:{settings.port}"
    print(
        f"relayd: cannot listen on {address}: {what}; choose another with --listen HOST:PORT", file=sys.stderr
    )
    return EXIT_PORT_IN_USE if in_use else EXIT_FAILED


def _raise_file_limit() -> None:
    """Allow as many connections as the system lets a process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # the limit stays as it was


def _positive(text: str) -> int:
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise ValueError(f"{text!r} is no number of 1 or more")
    return number


def _period(text: str) -> float:
    seconds = units.parse_duration_s(text)
    if seconds <= 0:
        raise ValueError("it must be longer than 0")
    return seconds


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make a parser's ValueError what argparse shows, word for word."""

    def parse_or_complain(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_or_complain
