"""One measurement of one gateway, for each row of the table.

Every function here runs the native load once against a gateway that is up, and returns figures by their key
(figures.py) or raises Spoiled: an answer that was wrong makes the measurement no figure at all.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from bench.gateways import Gateway
from bench.processes import memory_kib
from bench.toolchain import native
from bench.wire import ANSWER_BYTES, STREAM_EVENTS, STREAM_GAP_MS, STREAM_SENDS, Client

WARM_CONNECTIONS = 16
PARTS = ("decision", "bookkeeping")  # histograms of relayd's own time
SETTLE_S = 2.0  # two events of every slow stream


class Spoiled(Exception):
    """A measurement that gives no figure, and why."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    seconds: float = 2.0
    warmup_s: float = 0.5
    connections: int = 64
    streams: int = 200
    held: int = 2000


@dataclass(frozen=True)
class Bench:
    """What a measurement needs: sizes, who asks, a folder for its files, whether the upstream is ours."""

    sizes: Sizes
    client: Client
    folder: Path
    own_upstream: bool = True


Result = dict[str, float]


def cpu(bench: Bench, gateway: Gateway) -> Result:
    """Processor time of the gateway per request, all connections busy."""
    answer = _requests(bench, gateway, bench.sizes.connections, bench.sizes.seconds)
    result = {"requests_s": answer["completed"] / answer["seconds"]}
    if gateway.pid:
        result["cpu_us_request"] = answer["cpu_ns"] / 1e3 / answer["completed"]
        result["cores_used"] = answer["cpu_ns"] / 1e9 / answer["seconds"]
    return result | parts(gateway)


def parts(gateway: Gateway) -> Result:
    """What a relayd with an admin port says of its own time: means, in us a request."""
    if gateway.admin is None:
        return {}
    with urllib.request.urlopen(f"{gateway.admin.url}/metrics", timeout=5) as page:
        said = dict(line.rsplit(" ", 1) for line in page.read().decode().splitlines() if line[0] != "#")
    counted = {part: float(said[f"relayd_{part}_seconds_count"]) for part in PARTS}
    return {
        f"{part}_us": float(said[f"relayd_{part}_seconds_sum"]) / count * 1e6
        for part, count in counted.items()
        if count
    }


def latency(bench: Bench, gateway: Gateway) -> Result:
    """Time from the first byte sent to the last received, one request at a time."""
    answer = _requests(bench, gateway, 1, bench.sizes.seconds)
    return {"latency_p50_us": answer["latency_us"]["p50"], "latency_p99_us": answer["latency_us"]["p99"]}


def streams(bench: Bench, gateway: Gateway) -> Result:
    """Processor time per chunk, how long a chunk travels, how long the first content takes."""
    length_ms = STREAM_SENDS * STREAM_GAP_MS
    answer = _load(
        bench,
        gateway,
        "streams",
        bench.client.stream(gateway.address),
        count=bench.sizes.streams,
        seconds=max(bench.sizes.seconds, 1.1 * length_ms / 1e3),  # every stream begins in it at least once
        stagger=length_ms,
        warmup=bench.sizes.warmup_s + length_ms / 1e3,
        **({"expect-events": STREAM_EVENTS} if bench.own_upstream else {}),
    )
    if not answer["chunks"] or not answer["first_content_us"]:
        raise Spoiled("no stream with content began in the window")
    first = answer["first_content_us"]
    result = {
        "first_p50_us": first["p50"],
        "first_p99_us": first["p99"],
        "chunks_s": answer["chunks"] / answer["seconds"],
    }
    if answer["transit_us"] and not answer["unstamped"]:
        result |= {
            "transit_p50_us": answer["transit_us"]["p50"],
            "transit_p99_us": answer["transit_us"]["p99"],
        }
    if gateway.pid:
        result["cpu_us_chunk"] = answer["cpu_ns"] / 1e3 / answer["chunks"]
        result["cores_used"] = answer["cpu_ns"] / 1e9 / answer["seconds"]
    return result


def memory(bench: Bench, gateway: Gateway) -> Result:
    """Memory per stream that is open, each with an event a second.  Wants a gateway that was just started."""
    base, held = _held(bench, gateway, "hold", bench.client.slow_stream(gateway.address))
    return {"stream_kib": (held - base) / bench.sizes.held}


def idle(bench: Bench, gateway: Gateway) -> Result:
    """Memory per connection that had one answer and waits.  Wants a gateway that was just started."""
    base, held = _held(bench, gateway, "idle", bench.client.plain(gateway.address))
    return {"idle_kib": (held - base) / bench.sizes.held, "base_mib": base / 1024}


ROW_FUNCTIONS = {"cpu": cpu, "latency": latency, "streams": streams, "memory": memory, "idle": idle}
MEMORY_ROWS = ("memory", "idle")  # they need the gateway's process id, and have nothing to say of "direct"


def _requests(bench: Bench, gateway: Gateway, connections: int, seconds: float) -> dict:
    answer = _load(
        bench,
        gateway,
        "requests",
        bench.client.plain(gateway.address),
        count=connections,
        seconds=seconds,
        warmup=bench.sizes.warmup_s,
        **_expected_bytes(bench),
    )
    if not answer["completed"]:
        raise Spoiled("no request was answered in the window: measure for longer (--seconds)")
    return answer


def _expected_bytes(bench: Bench) -> dict[str, float]:
    return {"expect-bytes": ANSWER_BYTES} if bench.own_upstream else {}


def _held(bench: Bench, gateway: Gateway, mode: str, request: bytes) -> tuple[float, float]:
    """Returns the gateway's memory in KiB before and while `held` connections are open."""
    _warm(bench, gateway)
    base = memory_kib(gateway.pids())
    with _start_load(
        bench, gateway, mode, request, {"count": bench.sizes.held, **_expected_bytes(bench)}
    ) as load:
        try:
            first = load.stdout.readline() if load.stdout else ""
            held = base
            if '"ready"' in first and '"errors"' not in first:
                time.sleep(SETTLE_S)
                held = memory_kib(gateway.pids())
            output, complaint = load.communicate(timeout=30)
            output = output or first  # it has ended before it was ready
        finally:
            load.kill()
    answer = _judge(output, complaint, load.returncode)
    if answer["ready"] < bench.sizes.held:
        raise Spoiled(f"only {answer['ready']} of {bench.sizes.held} connections could be opened")
    return base, held


def _warm(bench: Bench, gateway: Gateway) -> None:
    """Lets the gateway allocate what it needs only once."""
    _requests(bench, gateway, WARM_CONNECTIONS, 0.5)
    request = bench.client.stream(gateway.address, sends=8)
    _load(bench, gateway, "streams", request, count=WARM_CONNECTIONS, seconds=0.5, warmup=0)
    time.sleep(0.3)


def _load(bench: Bench, gateway: Gateway, mode: str, request: bytes, **options: float) -> dict:
    with _start_load(bench, gateway, mode, request, options) as load:
        try:
            output, complaint = load.communicate(timeout=options["seconds"] + options["warmup"] + 60)
        except subprocess.TimeoutExpired:
            raise Spoiled("the load did not end in time") from None
        finally:
            load.kill()
    return _judge(output, complaint, load.returncode)


def _start_load(
    bench: Bench, gateway: Gateway, mode: str, request: bytes, options: dict[str, float]
) -> subprocess.Popen[str]:
    """Starts the native load.  It runs where this process does: the harness has moved to the load's core."""
    request_file = bench.folder / "request"
    request_file.write_bytes(request)
    command = [
        str(native("load")),
        "--mode",
        mode,
        "--connect",
        gateway.address.authority,
        "--request",
        str(request_file),
        "--pids",
        ",".join(map(str, gateway.pids())),
    ]
    for name, value in options.items():
        command += [f"--{name}", f"{value:g}"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _judge(output: str, complaint: str, returncode: int) -> dict:
    """Returns what the load counted.  Raises Spoiled when any answer was wrong or missing."""
    if returncode:
        raise Spoiled(complaint.strip().removeprefix("bench: ") or f"the load ended with status {returncode}")
    answer = json.loads(output.strip().splitlines()[-1])
    if answer["errors"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in answer["errors"].items())
        raise Spoiled(f"{kinds} ({answer['first_error']})")
    if answer["unfinished"]:
        raise Spoiled(f"{answer['unfinished']} answers did not end")
    return answer
