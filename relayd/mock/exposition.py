"""/metrics, in Prometheus text, under the names the imitated engine uses.

SGLang has names of its own; everything else is shown as vLLM would.  What a name means
is the same in both: it is read off the simulation at the moment of the scrape.
"""

from __future__ import annotations

from collections.abc import Iterator

from relayd.mock.meters import Histogram
from relayd.mock.prefix import BLOCK_TOKENS
from relayd.mock.simulation import Simulation

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Number = int | float


def render(simulation: Simulation, engine: str, model: str) -> bytes:
    """Return the whole page."""
    lines = _sglang(simulation, model) if engine == "sglang" else _vllm(simulation, model)
    return ("\n".join(lines) + "\n").encode()


def _vllm(simulation: Simulation, model: str) -> Iterator[str]:
    labels = f'engine="0",model_name="{_escape(model)}"'
    meters = simulation.meters
    yield from _one(
        "vllm:num_requests_running", "gauge", "Requests in the batch.", labels, simulation.num_running
    )
    yield from _one(
        "vllm:num_requests_waiting", "gauge", "Requests in the queue.", labels, simulation.num_waiting
    )
    yield from _one(
        "vllm:kv_cache_usage_perc", "gauge", "KV cache in use, 0 to 1.", labels, simulation.kv_usage
    )
    counters: list[tuple[str, str, Number]] = [
        ("prompt_tokens", "Prompt tokens read.", meters.prompt_tokens),
        ("generation_tokens", "Tokens written.", meters.generation_tokens),
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", meters.prefix_queries),
        ("prefix_cache_hits", "Prompt tokens found there.", meters.prefix_hits),
        ("num_preemptions", "Sequences preempted; the mock preempts none.", 0),
    ]
    for name, meaning, value in counters:
        yield from _one(f"vllm:{name}_total", "counter", meaning, labels, value)
    yield from _head("vllm:request_success_total", "counter", "Requests that ended, by how.")
    for reason, count in meters.finished.items():
        yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}'
    for name, meaning, histogram in (
        ("time_to_first_token", "From arrival to first token.", meters.ttft_s),
        ("inter_token_latency", "Between two tokens of an answer.", meters.inter_token_s),
        ("e2e_request_latency", "From arrival to last token.", meters.e2e_s),
        ("request_queue_time", "Time in the queue.", meters.queue_s),
        ("request_prefill_time", "Reading the prompt.", meters.prefill_s),
        ("request_decode_time", "Writing the answer.", meters.decode_s),
    ):
        yield from _histogram(f"vllm:{name}_seconds", meaning, labels, histogram)
    blocks = simulation.profile.kv_tokens // BLOCK_TOKENS
    info = f'block_size="{BLOCK_TOKENS}",engine="0",num_gpu_blocks="{blocks}"'
    yield from _one("vllm:cache_config_info", "gauge", "How the KV cache is divided.", info, 1)


def _sglang(simulation: Simulation, model: str) -> Iterator[str]:
    labels = f'model_name="{_escape(model)}"'
    meters = simulation.meters
    hit_rate = meters.prefix_hits / meters.prefix_queries if meters.prefix_queries else 0.0
    gauges: list[tuple[str, str, Number]] = [
        ("num_running_reqs", "Requests in the batch.", simulation.num_running),
        ("num_queue_reqs", "Requests in the queue.", simulation.num_waiting),
        ("token_usage", "KV cache in use, 0 to 1.", simulation.kv_usage),
        ("num_used_tokens", "KV cache in use, in tokens.", simulation.kv_used),
        ("cache_hit_rate", "Share of prompt tokens found in the prefix cache.", hit_rate),
    ]
    for name, meaning, value in gauges:
        yield from _one(f"sglang:{name}", "gauge", meaning, labels, value)
    counters: list[tuple[str, str, Number]] = [
        ("prompt_tokens", "Prompt tokens read.", meters.prompt_tokens),
        ("generation_tokens", "Tokens written.", meters.generation_tokens),
        ("cached_tokens", "Prompt tokens found in the prefix cache.", meters.prefix_hits),
        ("num_requests", "Requests that ended.", sum(meters.finished.values())),
    ]
    for name, meaning, value in counters:
        yield from _one(f"sglang:{name}_total", "counter", meaning, labels, value)
    for name, meaning, histogram in (
        ("time_to_first_token", "From arrival to first token.", meters.ttft_s),
        ("inter_token_latency", "Between two tokens of an answer.", meters.inter_token_s),
        ("e2e_request_latency", "From arrival to last token.", meters.e2e_s),
    ):
        yield from _histogram(f"sglang:{name}_seconds", meaning, labels, histogram)


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _one(name: str, kind: str, meaning: str, labels: str, value: Number) -> Iterator[str]:
    yield from _head(name, kind, meaning)
    yield f"{name}{{{labels}}} {value}"


def _histogram(name: str, meaning: str, labels: str, histogram: Histogram) -> Iterator[str]:
    yield from _head(name, "histogram", meaning)
    total = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        total += count
        yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
    total += histogram.counts[-1]
    yield f'{name}_bucket{{{labels},le="+Inf"}} {total}'
    yield f"{name}_count{{{labels}}} {total}"
    yield f"{name}_sum{{{labels}}} {histogram.sum}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
