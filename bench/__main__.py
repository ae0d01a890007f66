"""The command line.

python -m bench                       relayd, nginx and a plain aiohttp proxy, beside no proxy at all
python -m bench --target URL          a gateway that is already running
python -m bench upstream              the fast upstream alone, to put behind a gateway
python -m bench profile relayd        where the processor time goes, under the load of a row
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import gateways, machine
from bench.faults import BenchFault, Unavailable
from bench.figures import ROWS
from bench.gateways import COMMANDS, Gateway, Upstream
from bench.measure import Bench, Sizes
from bench.profiler import add_profile_arguments, profile
from bench.report import as_json, as_table
from bench.session import DIRECT, Outcome, Session
from bench.toolchain import native
from bench.wire import Client, parse_url

QUICK = Sizes(seconds=0.7, warmup_s=0.3, held=500)
QUICK_ROUNDS = 2
ROUNDS = 5


def main(argv: list[str]) -> int:
    """Returns the exit code: 0 measured, 1 something failed, 2 usage, 75 port in use."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended on the way out
    try:
        if argv[:1] == ["upstream"]:
            return run_upstream(argv[1:])
        if argv[:1] == ["profile"]:
            return run_profile(argv[1:])
        return run_bench(argv)
    except BenchFault as fault:
        print(f"bench: {fault}", file=sys.stderr)
        return fault.exit_code
    except KeyboardInterrupt:
        return 130


# ---- the table ----


def run_bench(argv: list[str]) -> int:
    args = bench_arguments().parse_args(argv)
    sizes = sizes_from(args)
    rows = names_from("--rows", args.rows, ROWS)
    check_json(args.json)
    cores = prepare_machine(sizes)
    client = Client(model=args.model or "bench", all_headers=args.sdk_headers)
    if args.key:
        client = Client(client.model, args.key, client.all_headers)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        bench = Bench(sizes, client, Path(folder), own_upstream=not args.target)
        outcome = (
            measure_target(args, bench, cores, rows) if args.target else measure_all(args, bench, cores, rows)
        )
    show(args, outcome, sizes, rows, cores)
    measured = set(outcome.columns) - {DIRECT} - set(outcome.missing)
    return 0 if measured and not outcome.spoiled else 1


def bench_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure what gateways cost, side by side.",
        epilog="Also: python -m bench upstream, python -m bench profile NAME. See docs/bench.md.",
    )
    parser.add_argument("--only", metavar="NAMES", help=f"of {','.join(COMMANDS)}; all by default")
    parser.add_argument("--rows", metavar="NAMES", help=f"of {','.join(ROWS)}; all by default")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"rounds to take the median of ({ROUNDS})")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help=f"length of one measurement ({Sizes.seconds:g})"
    )
    parser.add_argument("--connections", type=int, metavar="N", help=f"in the cpu row ({Sizes.connections})")
    parser.add_argument("--streams", type=int, metavar="N", help=f"in the streams row ({Sizes.streams})")
    parser.add_argument("--held", type=int, metavar="N", help=f"in the memory and idle rows ({Sizes.held})")
    parser.add_argument("--quick", action="store_true", help="a rough answer, in one or two minutes")
    parser.add_argument(
        "--sdk-headers", action="store_true", help="send all 17 headers of the SDK, not the nine"
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write the figures there too; - writes only them, to stdout"
    )
    target = parser.add_argument_group("a gateway that is already running")
    target.add_argument("--target", metavar="URL", help="measure this one, and only it")
    target.add_argument("--pid", type=int, metavar="PID", help="its process, for processor time and memory")
    target.add_argument("--upstream", metavar="URL", help="what is behind it, to tell what it adds")
    target.add_argument("--model", help="the model to ask for (the first that it lists)")
    target.add_argument("--key", help="the API key to send")
    return parser


def sizes_from(args: argparse.Namespace) -> Sizes:
    usual = QUICK if args.quick else Sizes()
    given = {name: getattr(args, name) for name in ("seconds", "connections", "streams", "held")}
    for name, value in (*given.items(), ("rounds", args.rounds)):
        if value is not None and value <= 0:
            raise BenchFault(f"--{name} is {value:g}: give a number above 0", 2)
    return Sizes(**{**vars(usual), **{name: value for name, value in given.items() if value is not None}})


def check_json(file: str | None) -> None:
    """Finds out before the run, not after it, that there is nowhere to write to."""
    if not file or file == "-":
        return
    try:
        Path(file).open("a").close()
    except OSError as error:
        raise BenchFault(f"--json {file} cannot be written: {error.strerror}", 2) from None


def names_from(option: str, text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names in a comma-separated list, in the order of `known`."""
    if not text:
        return known
    names = {name.strip() for name in text.split(",")}
    if unknown := names - set(known):
        raise BenchFault(f"{option} names '{sorted(unknown)[0]}': it takes {', '.join(known)}", 2)
    return tuple(name for name in known if name in names)


def prepare_machine(sizes: Sizes) -> machine.Cores:
    """Moves this process, and so the load, off the gateway's core, and makes room for the descriptors."""
    cores = machine.choose_cores()
    if cores.load is not None:
        os.sched_setaffinity(0, {cores.load})
    needed = max(gateways.OPEN_FILES, 2 * sizes.held + 1000)
    allowed = machine.raise_open_files(needed)
    wanted = 2 * max(sizes.held, sizes.streams, sizes.connections) + 200
    if allowed < wanted:
        raise BenchFault(
            f"{wanted} open files are needed and {allowed} allowed: raise `ulimit -n`, or lower --held"
        )
    return cores


def measure_all(
    args: argparse.Namespace, bench: Bench, cores: machine.Cores, rows: tuple[str, ...]
) -> Outcome:
    chosen = tuple(name for name in names_from("--only", args.only, (DIRECT, *COMMANDS)) if name != DIRECT)
    if args.pid or args.upstream or args.key or args.model:
        raise BenchFault("--pid, --upstream, --model and --key describe a --target: name it too", 2)
    native("load")
    upstream = Upstream(bench.folder, cores.load)
    try:
        starters: dict[str, Callable[[], Gateway]] = {DIRECT: lambda: Gateway(DIRECT, upstream.address)}
        for name in chosen:
            starters[name] = lambda name=name: gateways.start(name, upstream.address, bench.folder, cores)
        return Session(bench, cores, starters, [upstream.child.pid]).run(rows, rounds_from(args))
    finally:
        upstream.child.stop()


def measure_target(
    args: argparse.Namespace, bench: Bench, cores: machine.Cores, rows: tuple[str, ...]
) -> Outcome:
    if args.only:
        raise BenchFault("--only chooses among gateways that bench starts: leave it out with --target", 2)
    target = gateways.running(parse_url(args.target), args.pid)
    starters = {"target": lambda: target}
    if args.upstream:
        behind = gateways.running(parse_url(args.upstream), None, DIRECT)
        starters = {DIRECT: lambda: behind, **starters}
    if not args.model:
        model = gateways.first_model(target.address, args.key)
        bench = Bench(
            bench.sizes, Client(model, bench.client.key, bench.client.all_headers), bench.folder, False
        )
    anywhere = machine.Cores(None, None)  # someone else's processes: which of them take part is not known
    return Session(bench, anywhere, starters, []).run(rows, rounds_from(args))


def rounds_from(args: argparse.Namespace) -> int:
    rounds: int = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    return rounds


def show(
    args: argparse.Namespace, outcome: Outcome, sizes: Sizes, rows: tuple[str, ...], cores: machine.Cores
) -> None:
    facts = machine.facts()
    versions = versions_of(outcome)
    rounds = rounds_from(args)
    if args.json:
        document = {"rounds": rounds, **as_json(outcome, rows, sizes, versions, facts)}
        text = json.dumps(document, indent=2) + "\n"
        if args.json == "-":
            sys.stdout.write(text)
            return
        Path(args.json).write_text(text)
    print(
        f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, Linux {facts['kernel']}, "
        f"Python {facts['python']} ({facts['python_loop_ns']} ns an empty loop)"
    )
    print(f"medians of {rounds} rounds of {sizes.seconds:g} s; {placement(args, cores)}\n")
    print(as_table(outcome, rows, sizes, versions))


def placement(args: argparse.Namespace, cores: machine.Cores) -> str:
    if args.target:
        return "the load on one core, the gateway where it was started"
    if cores.measured:
        return "each gateway alone on one core, upstream and load on another"
    return (
        "NOT PINNED: there is one core only, so the load takes time from the gateway; latencies mean little"
    )


def versions_of(outcome: Outcome) -> dict[str, str]:
    versions = {}
    for column in outcome.columns:
        try:
            versions[column] = gateways.version(column)
        except Unavailable:
            continue
    return versions


# ---- the other commands ----


def run_upstream(argv: list[str]) -> int:
    """Becomes the native upstream."""
    parser = argparse.ArgumentParser(
        prog="python -m bench upstream",
        description='Run the fast upstream alone. In a request\'s body, "stream": true, "max_tokens" and '
        '"bench_gap_ms" ask for a stream, for how many chunks, and how far apart.',
    )
    parser.add_argument("--listen", default="127.0.0.1:9000", metavar="HOST:PORT")
    args = parser.parse_args(argv)
    machine.raise_open_files(65536)
    program = str(native("upstream"))
    os.execv(program, [program, "--listen", args.listen])


def run_profile(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench profile",
        description="Show where a gateway spends its time under the load of a row.",
    )
    add_profile_arguments(parser)
    args = parser.parse_args(argv)
    sizes = Sizes(seconds=args.seconds, connections=args.connections, streams=args.streams)
    cores = prepare_machine(sizes)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return profile(args, Bench(sizes, Client(), Path(folder)), cores)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
