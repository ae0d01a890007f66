"""How a request ended is judged from the bytes that arrived, however they were cut."""

import asyncio
from time import monotonic

import pytest

from relayd.demo.client import Call, Client, Ending
from relayd.demo.plan import Ask
from tests.support.dialects import OPENAI

HEAD = b"HTTP/1.1 200 OK\r\nx-relayd-worker: a100-0\r\n"
STREAM_HEAD = HEAD + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ERROR = OPENAI.error(502, "the worker closed the connection")


def chunk(text):
    data = text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(status, body):
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


EVENTS = "".join(OPENAI.events("one", " two"))
BEGUN = STREAM_HEAD + chunk(OPENAI.preamble) + chunk(OPENAI.text("one"))
PLAIN = b'{"choices": [{"message": {"role": "assistant", "content": "one two"}}]}'

STREAMS = [
    # what                                  bytes, then a close                       ending            text
    ("whole", STREAM_HEAD + chunk(EVENTS) + b"0\r\n\r\n", Ending.ANSWERED, "one two"),
    ("no answer at all", b"", Ending.FAILED, ""),
    ("an error status", whole(503, b'{"error": {}}'), Ending.FAILED, ""),
    ("an error before content", STREAM_HEAD + chunk(OPENAI.preamble) + chunk(ERROR), Ending.FAILED, ""),
    ("an end before content", STREAM_HEAD + b"0\r\n\r\n", Ending.FAILED, ""),
    ("not HTTP", b"SSH-2.0-OpenSSH_9.2\r\n", Ending.FAILED, ""),
    ("an error event, then broken", BEGUN + chunk(ERROR), Ending.CUT, "one"),
    ("an error event, then an end", BEGUN + chunk(ERROR) + b"0\r\n\r\n", Ending.CUT, "one"),
    ("broken between events", BEGUN, Ending.CUT, "one"),
    ("broken in a chunk", BEGUN + chunk(OPENAI.text(" two"))[:-9], Ending.CUT, "one"),
    ("broken after [DONE]", STREAM_HEAD + chunk(EVENTS), Ending.CUT, "one two"),
    ("an end without [DONE]", BEGUN + b"0\r\n\r\n", Ending.SILENT, "one"),
]
PLAINS = [
    ("whole", whole(200, PLAIN), Ending.ANSWERED, "one two"),
    ("half", whole(200, PLAIN)[:-20], Ending.FAILED, ""),
    ("not what was asked for", whole(200, b"{}"), Ending.FAILED, ""),
    ("an error status", whole(429, b"slower"), Ending.FAILED, ""),
]
CASES = [(True, *case) for case in STREAMS] + [(False, *case) for case in PLAINS]


@pytest.mark.parametrize(
    ("streamed", "answer", "ending", "text"),
    [(case[0], *case[2:]) for case in CASES],
    ids=[f"{'stream' if case[0] else 'plain'}: {case[1]}" for case in CASES],
)
@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_an_ending_is_what_it_is(streamed, answer, ending, text, piece):
    call = asyncio.run(carry(streamed, [answer], piece))[0]
    assert (call.ending, call.text) == (ending, text), call.how


def test_a_connection_is_used_again():
    answer = whole(200, PLAIN)
    calls = asyncio.run(carry(False, [answer, answer], 100_000))
    assert [call.ending for call in calls] == [Ending.ANSWERED, Ending.ANSWERED]


def test_an_address_where_nobody_is():
    async def ask():
        call = Call(Ask(0, 0.0, True, b"{}"), monotonic())
        await Client("127.0.0.1", 1).carry(call)
        return call

    call = asyncio.run(ask())
    assert call.ending is Ending.FAILED
    assert "cannot be reached" in call.how


async def carry(streamed, answers, piece):
    """Return calls that got `answers`, all on the first connection that was made."""
    connections = []

    async def serve(reader, writer):
        connections.append(writer)
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n{}")
            for start in range(0, len(answer), piece):
                writer.write(answer[start : start + piece])
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Client(*server.sockets[0].getsockname())
    calls = [Call(Ask(number, 0.0, streamed, b"{}"), monotonic()) for number in range(len(answers))]
    async with asyncio.timeout(10):
        for call in calls:
            await client.carry(call)
    client.close()
    server.close()
    assert len(connections) == 1
    return calls
