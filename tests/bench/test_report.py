"""The table and the JSON say what was found, and say so when nothing was."""

import pytest

from bench.faults import BenchFault
from bench.figures import FIGURES
from bench.measure import Sizes
from bench.report import as_json, as_table
from bench.session import Outcome
from bench.wire import BODY_BYTES, Address, Client, parse_url

BY_KEY = {figure.key: figure for figure in FIGURES}
CPU, LATENCY = BY_KEY["cpu_us_request"], BY_KEY["latency_p50_us"]
VERSIONS = {"direct": "", "nginx": "1", "relayd": "2"}


def outcome(**rounds):
    return Outcome(["direct", "nginx", "relayd"], rounds=rounds)


def cpu(*values):
    return [value and {"cpu_us_request": value, "requests_s": 1.0} for value in values]


def line_of(table, title):
    return next(line for line in table.splitlines() if line.startswith(title))


def test_figures_are_medians_and_ratios_are_of_one_round():
    found = outcome(cpu={"nginx": cpu(10.0, 20.0, 30.0), "relayd": cpu(20.0, 60.0, 60.0)})
    assert found.value(CPU, "relayd") == 60.0
    assert found.ratio(CPU, "relayd") == 2.0
    line = line_of(as_table(found, ("cpu",), Sizes(), VERSIONS), "CPU us/request")
    assert line.split()[-4:] == ["20.0", "60.0", "2.00x", "2.8x"]


def test_guarded_has_a_ceiling_of_its_own():
    rounds = {"cpu": {"nginx": cpu(10.0), "relayd": cpu(27.0), "guarded": cpu(33.0)}}
    table = as_table(Outcome(["nginx", "relayd", "guarded"], rounds=rounds), ("cpu",), Sizes(), VERSIONS)
    assert "2.8x (guarded 3.2x)" in line_of(table, "CPU us/request")
    above = [line for line in table.splitlines() if "ABOVE THE CEILING" in line]
    assert len(above) == 1
    assert "guarded: 3.30x nginx's, ceiling 3.2" in above[0]


def test_what_a_gateway_adds_is_told_by_the_direct_measurement_of_the_round():
    def took(*p50s):
        return [{"latency_p50_us": p50, "latency_p99_us": p50} for p50 in p50s]

    nginx, relayd = took(30.0, 70.0), took(70.0, 110.0)
    found = outcome(latency={"direct": took(10.0, 50.0), "nginx": nginx, "relayd": relayd})
    assert found.value(LATENCY, "direct") == 30.0
    assert found.value(LATENCY, "nginx") == 20.0
    assert found.ratio(LATENCY, "relayd") == 3.0


def test_a_spoiled_round_is_no_figure():
    found = outcome(cpu={"nginx": cpu(10.0, 10.0), "relayd": cpu(20.0, None)})
    found.spoiled.append("cpu: relayd FAILED: 3 status")
    table = as_table(found, ("cpu",), Sizes(), VERSIONS)
    assert "FAILED" in line_of(table, "CPU us/request")
    assert "3 status" in table
    document = as_json(found, ("cpu",), Sizes(), VERSIONS, {})
    assert document["figures"]["cpu_us_request"]["medians"]["relayd"] is None
    assert document["failed"] == ["cpu: relayd FAILED: 3 status"]


def test_a_gateway_that_is_missing_says_why():
    found = outcome(cpu={"relayd": cpu(20.0)})
    found.missing["nginx"] = "nginx is not installed"
    table = as_table(found, ("cpu",), Sizes(), VERSIONS)
    assert "missing" in line_of(table, "CPU us/request")
    assert "nginx was not measured: nginx is not installed" in table


def test_a_figure_above_its_ceiling_is_pointed_at():
    found = outcome(cpu={"nginx": cpu(10.0), "relayd": cpu(29.0)})
    assert "ABOVE THE CEILING: CPU us/request" in as_table(found, ("cpu",), Sizes(), VERSIONS)


URLS = [
    ("http://127.0.0.1:8080", Address("127.0.0.1", 8080, "/v1")),
    ("http://gateway/v1/", Address("gateway", 80, "/v1")),
    ("http://[::1]:8080/api", Address("::1", 8080, "/api/v1")),
]


@pytest.mark.parametrize(("url", "address"), URLS)
def test_urls_are_understood(url, address):
    assert parse_url(url) == address


@pytest.mark.parametrize(
    "url", ["https://host", "host:80", "http://", "http://host:port", "http://host:70000"]
)
def test_other_urls_are_refused(url):
    with pytest.raises(BenchFault):
        parse_url(url)


def test_the_request_is_the_one_that_is_described():
    address = Address("127.0.0.1", 8080)
    for request in (Client().plain(address), Client().stream(address)):
        head, _, body = request.partition(b"\r\n\r\n")
        assert len(body) == BODY_BYTES
        assert len(head.split(b"\r\n")) == 1 + 9
    assert len(Client(all_headers=True).plain(address).partition(b"\r\n\r\n")[0].split(b"\r\n")) == 1 + 17
