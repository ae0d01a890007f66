"""The traffic is the same for the same seed, and on the wire it is the official client's."""

import json
import socket
import threading

import openai
import pytest

from relayd.demo.plan import MODEL, make_plan, on_the_wire


def test_the_same_seed_makes_the_same_traffic():
    assert make_plan(5, 20, seed=3) == make_plan(5, 20, seed=3)
    assert make_plan(5, 20, seed=3) != make_plan(5, 20, seed=4)


def test_requests_come_at_the_rate_that_was_asked_for():
    plan = make_plan(200, 20, seed=1)
    assert len(plan) == pytest.approx(4000, rel=0.1)
    assert all(0 < ask.due_s < 200 for ask in plan)
    assert [ask.due_s for ask in plan] == sorted(ask.due_s for ask in plan)


def test_no_two_prompts_begin_alike():
    asks = make_plan(10, 20, seed=1)
    beginnings = {json.loads(ask.body)["messages"][0]["content"][:24] for ask in asks}
    assert len(beginnings) == len(asks)


@pytest.mark.parametrize("streamed", [True, False])
def test_the_bytes_are_those_of_the_official_client(streamed):
    ask = next(ask for ask in make_plan(10, 20, seed=1) if ask.streamed is streamed)
    body = json.loads(ask.body)
    with Recorder() as recorder:
        client = openai.OpenAI(base_url=f"http://{recorder.host}/v1", api_key="sk-demo", max_retries=0)
        with pytest.raises(openai.APIConnectionError):
            client.chat.completions.create(
                model=MODEL,
                **({"stream": True} if streamed else {}),
                messages=body["messages"],
                max_tokens=body["max_tokens"],
                seed=body["seed"],
                temperature=body["temperature"],
            )
        recorded = recorder.take()
    ours = on_the_wire(ask, recorder.host)
    assert body_of(ours) == body_of(recorded)
    assert shape_of(ours) == shape_of(recorded)


def body_of(request):
    return request.partition(b"\r\n\r\n")[2]


def shape_of(request):
    """Return the request line, and names and values of the headers without what the machine decides."""
    first, *lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    changing = ("user-agent", "x-stainless-")
    return first, [line.split(":")[0] if line.startswith(changing) else line for line in lines]


class Recorder:
    """Takes one request and closes the connection without an answer."""

    def __enter__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(10)
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._request = b""
        self._thread = threading.Thread(target=self._record)
        self._thread.start()
        return self

    def _record(self):
        connection, _ = self._socket.accept()
        connection.settimeout(10)
        with connection:
            while not self._is_whole():
                self._request += connection.recv(65536)

    def _is_whole(self):
        head, _, body = self._request.partition(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return bool(length) and len(body) >= int(length[0].split(b":")[1])

    def take(self):
        self._thread.join(10)
        return self._request

    def __exit__(self, *exception):
        self._thread.join(10)
        self._socket.close()
