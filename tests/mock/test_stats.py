"""What the mock tells about its sockets and its engine."""

import asyncio
import socket
import struct

import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from tests.mock.running import ask, chat, message, request, running

SLOW = {"ttft_s": 30.0, "itl_s": 30.0}


def samples(mock):
    """Return /metrics as {name: value}, histograms by their count; several label sets are summed."""
    found = {}
    for family in text_string_to_metric_families(ask(mock, "/metrics").body.decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def test_counts_and_ledger():
    with running() as mock:
        ask(mock, "/v1/chat/completions", chat(stream=True), headers="x-request-id: one\r\nx-org: acme\r\n")
        ask(mock, "/v1/messages", message(), headers="x-request-id: two\r\n")
        ask(mock, "/v1/chat/completions", chat(model="other"))
        ask(mock, "/v1/models")
        mock.until(lambda server: server.stats.connections_open == 0)
        stats = ask(mock, "/mock/stats").json()
        with_headers = ask(mock, "/mock/stats?headers=1").json()["ledger"]
    assert stats["connections"] == {"open": 1, "accepted": 5, "closed": 4, "reset": 0, "aborted": 0}
    assert stats["requests"] == {
        "started": 3, "completed": 2, "cancelled": 0, "failed": 0, "rejected": 1, "open": 0,
        "by_path": {"/v1/chat/completions": 2, "/v1/messages": 1, "/v1/models": 1},
    }  # fmt: skip
    assert (stats["tokens_sent"], stats["events_sent"]) == (10, 8)
    one, two, three = stats["ledger"]
    assert (one["id"], one["outcome"], one["completion_tokens"], one["events"]) == ("one", "completed", 5, 8)
    assert one["prompt_tokens"] > 0
    assert (two["id"], two["stream"], two["status"]) == ("two", False, 200)
    assert (three["outcome"], three["status"]) == ("rejected", 404)
    assert ["x-org", "acme"] in with_headers[0]["headers"]
    assert "headers" not in one


def test_reset_zeroes_all_but_what_is_open():
    with running(**SLOW) as mock, mock.connect() as sock:
        sock.sendall(request("/v1/chat/completions", chat()))
        mock.until(lambda server: server.stats.requests_open == 1)
        assert ask(mock, "/mock/reset", {}).json() == {"reset": True}
        mock.until(lambda server: server.stats.connections_open == 1)
        stats = mock.do(lambda server: server.stats.as_json())
        assert (stats["requests"]["started"], stats["requests"]["open"], stats["ledger"]) == (0, 1, [])


@pytest.mark.parametrize("ending", ["close", "reset", "shutdown"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_client_that_leaves_frees_its_slot(ending, stream, make_loop):
    with running(make_loop, **SLOW) as mock, mock.connect() as sock:
        sock.sendall(request("/v1/chat/completions", chat(stream=stream), headers="x-request-id: gone\r\n"))
        mock.until(lambda server: server.simulation.num_running == 1)
        if stream:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")  # a close with bytes unread would be a reset
        if ending == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if ending == "shutdown":
            sock.shutdown(socket.SHUT_WR)
        else:
            sock.close()
        mock.until(lambda server: server.stats.connections_open == 0)
        simulation, stats = mock.do(lambda server: (server.simulation, server.stats))
        assert (simulation.num_running, simulation.kv_used) == (0, 0)
        assert stats.outcomes["cancelled"] == 1
        assert stats.last_disconnect["request_id"] == "gone"
        assert stats.last_disconnect["phase"] == ("answering" if stream else "waiting")
        assert stats.connections_reset == (ending == "reset")
        assert simulation.meters.finished["abort"] == 1


def test_leaving_the_queue_and_the_delay():
    with running(max_num_seqs=1, **SLOW) as mock, mock.connect() as first:
        first.sendall(request("/v1/chat/completions", chat()))
        mock.until(lambda server: server.simulation.num_running == 1)
        with mock.connect() as second, mock.connect() as third:
            second.sendall(request("/v1/chat/completions", chat()))
            third.sendall(request("/v1/chat/completions", chat(), headers="x-mock-fault: delay=1h\r\n"))
            mock.until(lambda server: server.simulation.num_waiting == 1 and server.stats.requests_open == 3)
        mock.until(lambda server: server.stats.requests_open == 1)
        assert mock.do(lambda server: server.simulation.num_waiting) == 0


@pytest.mark.parametrize("engine", ["vllm", "openai", "anthropic"])
def test_vllm_metrics_move_with_the_simulation(engine):
    with running(engine=engine, itl_s=None, ttft_s=None, gpu="t4", max_num_seqs=1) as mock:
        before = samples(mock)
        assert before["vllm:num_requests_running"] == before["vllm:prompt_tokens_total"] == 0
        with mock.connect() as one, mock.connect() as two:
            for sock in (one, two):
                sock.sendall(
                    request("/v1/chat/completions", chat(stream=True, max_tokens=500, ignore_eos=True))
                )
            mock.until(
                lambda s: s.simulation.num_running == s.simulation.num_waiting == 1 and s.stats.events_sent
            )
            during = samples(mock)
        assert during["vllm:num_requests_running"] == during["vllm:num_requests_waiting"] == 1
        assert 0 < during["vllm:kv_cache_usage_perc"] < 1
        assert during["vllm:generation_tokens_total"] >= 1
        assert during["vllm:time_to_first_token_seconds_count"] == 1
        mock.until(lambda server: server.stats.requests_open == 0)
        ask(mock, "/v1/chat/completions", chat(max_tokens=3))
        after = samples(mock)
    assert after["vllm:num_requests_running"] == after["vllm:kv_cache_usage_perc"] == 0
    assert after["vllm:request_success_total"] == 3
    assert after["vllm:e2e_request_latency_seconds_count"] == 1
    assert after["vllm:inter_token_latency_seconds_count"] >= 2


def test_sglang_has_names_of_its_own():
    with running(engine="sglang") as mock:
        ask(mock, "/v1/chat/completions", chat())
        found = samples(mock)
    assert found["sglang:num_running_reqs"] == found["sglang:token_usage"] == 0
    assert found["sglang:generation_tokens_total"] == 5
    assert not any(name.startswith("vllm") for name in found)


def test_a_model_name_is_quoted():
    with running(models=('odd"\\name',)) as mock:
        page = ask(mock, "/metrics").body.decode()
    labels = [
        s.labels for f in text_string_to_metric_families(page) for s in f.samples if "model_name" in s.labels
    ]
    assert labels[0]["model_name"] == 'odd"\\name'


def test_health():
    with running() as mock:
        answer = ask(mock, "/health")
    assert (answer.status, answer.body) == (200, b"")
