"""Where a gateway spends its time: `perf record` on its process while the load of a row runs.

perf sees the kernel, libc, uvloop and compiled code by symbol; of Python code it sees only the interpreter,
which is what --py-spy is for.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import gateways
from bench.faults import BenchFault
from bench.gateways import COMMANDS, Gateway, Upstream
from bench.machine import Cores
from bench.measure import ROW_FUNCTIONS, Bench, Spoiled
from bench.toolchain import CACHE, native

SAMPLES_PER_S = 1999
TOP = 40


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=list(COMMANDS))
    parser.add_argument("--row", choices=["cpu", "streams", "latency"], default="cpu", help="the load (cpu)")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="S", help="how long to look (6)")
    parser.add_argument("--connections", type=int, default=64, metavar="N")
    parser.add_argument("--streams", type=int, default=200, metavar="N")
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"symbols to show ({TOP})")
    parser.add_argument(
        "--py-spy", action="store_true", help="use py-spy instead of perf: shows Python functions"
    )


def profile(args: argparse.Namespace, bench: Bench, cores: Cores) -> int:
    """Prints the profile.  Returns the exit code."""
    record = record_py_spy if args.py_spy else record_perf
    native("load")
    upstream = Upstream(bench.folder, cores.load)
    try:
        gateway = gateways.start(args.name, upstream.address, bench.folder, cores)
        try:
            print(_profile_gateway(args, bench, gateway, record))
        finally:
            gateway.stop()
    finally:
        upstream.child.stop()
    return 0


def _profile_gateway(args: argparse.Namespace, bench: Bench, gateway: Gateway, record) -> str:
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(ROW_FUNCTIONS[args.row], bench, gateway)
        text = record(args, gateway)
        try:
            figures = ", ".join(f"{key} {value:,.1f}" for key, value in load.result().items())
        except Spoiled as why:
            raise BenchFault(f"the load failed while {args.name} was watched: {why}") from None
    return f"{args.name}, {args.row} row, watched for {args.seconds:g} s: {figures}\n\n{text}"


def record_perf(args: argparse.Namespace, gateway: Gateway) -> str:
    data = CACHE / f"perf-{args.name}-{args.row}.data"
    pids = ",".join(map(str, gateway.pids()))
    _run(
        "perf",
        "record",
        "--quiet",
        "-g",
        "-F",
        str(SAMPLES_PER_S),
        "-o",
        str(data),
        "-p",
        pids,
        "--",
        "sleep",
        f"{args.seconds:g}",
    )
    by_object = _perf_report(data, "dso", 20)
    by_symbol = _perf_report(data, "dso,symbol", args.top)
    callers = f"Callers: perf report -i {data} --no-children"
    return f"Where:\n{by_object}\n\nWhat:\n{by_symbol}\n\n{callers}"


def _perf_report(data: Path, keys: str, top: int) -> str:
    text = _run("perf", "report", "--stdio", "--no-children", "-g", "none", "-i", str(data), "--sort", keys)
    lines = [line.rstrip(" -") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return "\n".join(lines[:top])


def record_py_spy(args: argparse.Namespace, gateway: Gateway) -> str:
    output = CACHE / f"py-spy-{args.name}-{args.row}.txt"
    _run(
        "py-spy",
        "record",
        "--function",
        "--format",
        "raw",
        "--rate",
        "500",
        "--duration",
        str(max(1, int(args.seconds))),
        "--output",
        str(output),
        "--pid",
        str(gateway.pid),
    )
    return _self_shares(output.read_text(), args.top)


def _self_shares(collapsed: str, top: int) -> str:
    """Sums lines of `frame;frame;frame count` by their last frame."""
    counts: dict[str, int] = {}
    for line in collapsed.splitlines():
        stack, _, count = line.rpartition(" ")
        frame = stack.rpartition(";")[2]
        counts[frame] = counts.get(frame, 0) + int(count)
    total = sum(counts.values()) or 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])[:top]
    return "\n".join(f"{100 * count / total:6.2f}%  {frame}" for frame, count in ordered)


def _run(program: str, *arguments: str) -> str:
    found = shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if not found:
        raise BenchFault(f"{program} is not installed: it is what watches the process")
    done = subprocess.run([found, *arguments], capture_output=True, text=True)
    if done.returncode:
        complaint = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise BenchFault(f"{program} failed: {complaint[-1] if complaint else f'status {done.returncode}'}")
    return done.stdout
