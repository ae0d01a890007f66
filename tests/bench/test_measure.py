"""A measurement counts right answers, and gives no figure at all when one was wrong."""

import json

import pytest

from bench.gateways import Gateway, admin_of
from bench.measure import ROW_FUNCTIONS, Bench, Spoiled, parts
from bench.wire import Client, parse_url
from tests.bench.conftest import SMALL
from tests.support.gateway import Gateway as Relayd
from tests.support.upstream import Upstream as Scripted
from tests.support.upstream import cut_stream, head, reply, send, stream, stream_head
from tests.support.wire import ask, request

CHUNK = "data: " + json.dumps({"id": "x", "choices": [{"delta": {"content": "hi"}}]}) + "\n\n"
DONE = "data: [DONE]\n\n"

WRONG_ANSWERS = [
    # what, the row that meets it, the answer, how it fails
    ("an error", "cpu", reply({"error": {}}, 500), "status"),
    ("a body of another length", "cpu", reply(b"x" * 591), "length"),
    ("an empty body", "cpu", reply(b""), "length"),
    ("a cut body", "cpu", [head(200, ("content-length", "592")), send("x"), {"fin": True}], "closed_early"),
    ("a reset", "cpu", [{"rst": True}], "reset"),
    ("no HTTP", "cpu", [send("SSH-2.0-x\r\n\r\n"), {"fin": True}], "framing"),
    ("a byte too many", "cpu", [*reply(b"x" * 592), send("y")], "framing"),
    ("a broken chunk size", "streams", [stream_head(), send("zz\r\n")], "framing"),
    ("a cut stream", "streams", cut_stream(CHUNK), "closed_early"),
    ("a stream without its end", "streams", stream(CHUNK, CHUNK), "no_done"),
    ("events missing", "streams", stream(CHUNK, DONE), "events"),
    ("a stream that ends while held", "memory", stream(CHUNK, DONE), "events"),
]


@pytest.mark.parametrize(
    ("row", "script", "how"), [case[1:] for case in WRONG_ANSWERS], ids=[case[0] for case in WRONG_ANSWERS]
)
def test_a_wrong_answer_spoils_the_measurement(programs, bench, row, script, how):
    with Scripted(script) as scripted:
        gateway = Gateway("scripted", parse_url(scripted.url))
        with pytest.raises(Spoiled, match=how) if row != "memory" else pytest.raises(Spoiled):
            ROW_FUNCTIONS[row](bench, gateway)


@pytest.mark.parametrize("row", ["cpu", "latency", "streams"])
def test_right_answers_give_figures(bench, upstream, row):
    gateway = Gateway("upstream", upstream.address, None, upstream.child.pid)
    figures = ROW_FUNCTIONS[row](bench, gateway)
    assert all(value > 0 for value in figures.values())
    assert {"cpu": "cpu_us_request", "latency": "latency_p99_us", "streams": "cpu_us_chunk"}[row] in figures


def test_a_relayd_says_what_its_parts_took():
    """From its own histograms, and only those that have counted something."""
    with Scripted(reply({})) as scripted, Relayd(scripted) as relayd:
        gateway = Gateway("guarded", parse_url(relayd.url), admin=parse_url(relayd.admin))
        assert parts(gateway) == {}
        assert ask(relayd, request("POST", "/v1/chat/completions", body=b"{}")).status == 200
        took = parts(gateway)
    assert set(took) == {"decision_us", "bookkeeping_us"}
    assert all(0 < us < 60e6 for us in took.values())
    assert parts(Gateway("nginx", parse_url("http://127.0.0.1:1"))) == {}


def test_where_a_gateway_says_it_has_its_admin_port():
    said = "relayd: listening on http://127.0.0.1:1234, admin on http://127.0.0.1:4321\n"
    assert admin_of(said).port == 4321
    assert admin_of("relayd: listening on http://127.0.0.1:1234\n") is None


@pytest.mark.parametrize("row", ["memory", "idle"])
def test_connections_are_held_while_memory_is_read(bench, upstream, row):
    gateway = Gateway("upstream", upstream.address, None, upstream.child.pid)
    figures = ROW_FUNCTIONS[row](bench, gateway)
    assert {"memory": "stream_kib", "idle": "idle_kib"}[row] in figures


def test_events_without_our_stamp_give_no_transit_time(programs, tmp_path):
    with Scripted(stream(CHUNK, CHUNK, DONE)) as scripted:
        someone_elses = Bench(SMALL, Client(), tmp_path, own_upstream=False)
        figures = ROW_FUNCTIONS["streams"](someone_elses, Gateway("target", parse_url(scripted.url)))
    assert figures["first_p50_us"] > 0
    assert "transit_p50_us" not in figures


def test_a_gateway_that_is_not_there_is_said_to_be_so(programs, bench):
    with Scripted(reply({})) as scripted:
        gateway = Gateway("gone", parse_url(scripted.url))
    with pytest.raises(Spoiled, match="connect"):
        ROW_FUNCTIONS["cpu"](bench, gateway)
