"""Who may ask, for which model, and how much: a relayd with a settings file, asked as clients ask."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import jwt
import openai
import pytest

from tests.support.dialects import ANTHROPIC, OPENAI
from tests.support.gateway import Gateway
from tests.support.upstream import Gate, Upstream, chunk, reply, silence, stream, stream_head
from tests.support.waiting import eventually
from tests.support.wire import Answer, Client, ask, post_json, request

SECRET = "correct horse battery staple, twice over"
HELLO: list[Any] = [{"role": "user", "content": "hi"}]
CHAT = {"model": "large", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}

SETTINGS = """
auth:
  jwt: {{algorithms: [HS256], secret: "{secret}", issuer: "https://id.test/", audience: relayd}}
  keys: {keys}
limits:
  tiers:
    default: {{}}
    small: {{requests: 3/h, concurrency: 1}}
    counted: {{tokens: 1000/h}}
    monthly: {{quota_requests: 10/month}}
    hundred: {{tokens: 100/min}}
    thousand: {{tokens: 1000/min}}
workers:
  one: {{url: "{one}", key: worker-credential, headers: {{x-org: ours}}}}
models:
  large: {{targets: [{{worker: one, model: vendor/large-v2}}], aliases: [big]}}
  other: {{targets: [one]}}
{more}
"""

Start = Callable[..., "Place"]


class Place:
    """A worker, and a relayd that serves it as a file says."""

    def __init__(self, directory: Path, upstream: Upstream, more: str = "") -> None:
        self.upstream = upstream
        self.keys = directory / "keys.yaml"
        self.keys.write_text(keys_file())
        self.keys.chmod(0o600)
        self.file = directory / "relayd.yaml"
        self.file.write_text(SETTINGS.format(secret=SECRET, keys=self.keys, one=upstream.url, more=more))
        self.gateway = Gateway(arguments=("--config", str(self.file)))

    def ask(self, *headers: tuple[str, str], said: Any = None, path: str = "/v1/chat/completions") -> Answer:
        """Ask with these head lines."""
        body = json.dumps(CHAT if said is None else said).encode()
        return ask(self.gateway, request("POST", path, *headers, body=body))

    def status(self, key: str, **options: Any) -> int:
        """Ask with an API key and return the status."""
        return self.ask(("Authorization", f"Bearer {key}"), **options).status


def keys_file() -> str:
    rows = [
        {"sha256": digest("key-of-acme"), "tenant": "acme", "tier": "default"},
        {"sha256": digest("key-of-small"), "tenant": "small", "tier": "small"},
        {"sha256": digest("key-of-counted"), "tenant": "counted", "tier": "counted"},
        {"sha256": digest("key-of-monthly"), "tenant": "monthly", "tier": "monthly"},
        {"sha256": digest("key-of-hundred"), "tenant": "hundred", "tier": "hundred"},
        {"sha256": digest("key-of-thousand"), "tenant": "thousand", "tier": "thousand"},
        {"sha256": digest("key-of-other"), "tenant": "picky", "tier": "default", "models": ["other"]},
    ]
    return json.dumps(rows)  # JSON is YAML


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def token(**claims: Any) -> str:
    now = time.time()
    said = {"iss": "https://id.test/", "aud": "relayd", "sub": "acme", "exp": now + 300, **claims}
    return jwt.encode({name: value for name, value in said.items() if value is not None}, SECRET)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a Place; all are stopped afterwards."""
    places: list[Place] = []

    def begin(more: str = "") -> Place:
        upstream = Upstream()
        upstream.play(reply({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}))
        places.append(Place(tmp_path, upstream, more))
        return places[-1]

    yield begin
    for place in places:
        place.gateway.close()
        place.upstream.close()


def event(content: str) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': content}}]})}\n\n"


# --- who -----------------------------------------------------------------------------------------------


def test_credentials_of_every_kind_are_read(start: Start) -> None:
    place = start()
    for header in (
        ("Authorization", f"Bearer {token()}"),
        ("authorization", f"bearer   {token()}"),
        ("Authorization", "Bearer key-of-acme"),
        ("x-api-key", "key-of-acme"),
        ("api-key", "key-of-acme"),
        ("x-api-key", token()),
    ):
        assert place.ask(header).status == 200, header


@pytest.mark.parametrize(
    "header",
    [
        None,
        ("Authorization", "Bearer wrong"),
        ("Authorization", "Basic a2V5LW9mLWFjbWU6"),
        ("Authorization", "key-of-acme"),
        ("Authorization", f"Bearer {token(exp=1)}"),
        ("Authorization", f"Bearer {token(aud='another')}"),
        ("Authorization", f"Bearer {token(sub=None)}"),
        ("Authorization", f"Bearer {token()}x"),
        ("x-api-key", ""),
        ("x-api-key", "key-of-acme "[::-1]),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/models", "/unknown"])
def test_others_get_a_401_and_no_worker_hears_of_them(start: Start, header: Any, path: str) -> None:
    place = start()
    asked = len(place.upstream.requests)
    answer = place.ask(*([header] if header else []), path=path)
    assert answer.status == 401
    assert answer.header("www-authenticate").startswith("Bearer")
    error = answer.json()["error"]
    assert error["type"] == "authentication_error"
    assert error["code"] in ("credential_missing", "credential_invalid")
    assert len(place.upstream.requests) == asked


def test_a_clients_credential_stays_here_and_the_workers_own_goes_on(start: Start) -> None:
    place = start()
    place.ask(("Authorization", f"Bearer {token()}"), ("X-Org", "theirs"), ("X-Other", "kept"))
    head = place.upstream.requests[-1].head.lower()
    assert b"\r\nauthorization: bearer worker-credential\r\n" in head
    assert b"\r\nx-org: ours\r\n" in head
    assert b"\r\nx-other: kept\r\n" in head
    assert head.count(b"authorization") == head.count(b"x-org") == 1


def test_wrong_credentials_make_an_address_wait_but_not_one_that_is_known(start: Start) -> None:
    place = start()
    place.file.write_text(place.file.read_text().replace("auth:", "auth:\n  failures: 5/h"))
    place.gateway.close()
    place.gateway = Gateway(arguments=("--config", str(place.file)))
    assert place.status("key-of-acme") == 200
    assert [place.status(f"guess-{n}") for n in range(7)] == [401] * 5 + [429] * 2
    assert place.status("key-of-acme") == 200, "it is known"
    refused = place.ask(("Authorization", "Bearer key-of-other"))
    assert (refused.status, refused.json()["error"]["code"]) == (429, "credentials_tried")
    assert int(refused.header("retry-after")) > 0


def test_keys_are_read_again_on_hup(start: Start) -> None:
    place = start()
    assert place.status("key-of-acme") == 200
    place.keys.write_text(keys_file().replace(digest("key-of-acme"), digest("key-of-tomorrow")))
    place.gateway.signal(signal.SIGHUP)
    eventually(lambda: place.status("key-of-tomorrow") == 200, 5, "the new key")
    assert place.status("key-of-acme") == 401, "the old one is no longer good, not even from the cache"
    place.keys.write_text("nonsense: [")
    place.gateway.signal(signal.SIGHUP)
    eventually(lambda: "keys.yaml" in place.gateway.stderr, 5, "a line about the broken file")
    assert place.status("key-of-tomorrow") == 200, "what was there stays"


def reload(place: Place, *changes: tuple[str, str]) -> str:
    """Change the file, and return what relayd says when it has read it again."""
    said = len(place.gateway.stderr)
    text = place.file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    new = place.file.with_suffix(".new")
    new.write_text(text)
    new.replace(place.file)
    place.gateway.signal(signal.SIGHUP)
    ends = re.compile(r"relayd: settings read again.*\n|relayd: the settings stay as they are")
    eventually(lambda: ends.search(place.gateway.stderr, said), 5, "a line about the reload")
    return place.gateway.stderr[said:]


def test_what_was_used_stays_used_over_a_reload(start: Start) -> None:
    place = start()
    assert [place.status("key-of-small") for _ in range(2)] == [200, 200]
    assert [place.status("key-of-monthly") for _ in range(4)] == [200] * 4
    before = json.loads(place.gateway.ask_admin("/status")[1])["settings"]
    assert reload(place, ("10/month", "4/month")).endswith("relayd: settings read again\n")
    assert json.loads(place.gateway.ask_admin("/status")[1])["settings"] != before
    assert [place.status("key-of-small") for _ in range(2)] == [200, 429], "its rate has not changed"
    assert place.status("key-of-monthly") == 429, "four of four are used"
    reload(place, ("requests: 3/h", "requests: 2/h"))
    assert [place.status("key-of-small") for _ in range(3)] == [200, 200, 429], "another rate begins full"
    use = {row["tenant"]: row for row in json.loads(place.gateway.ask_admin("/status")[1])["tenants"]}
    assert use["monthly"]["quota_requests_used"] == 4
    assert use["small"]["in_flight"] == 0


def test_what_a_reload_cannot_take_it_names(start: Start) -> None:
    place = start()
    assert "a restart is needed for: models\n" in reload(place, ("aliases: [big]", "aliases: [big, huge]"))
    status = json.loads(place.gateway.ask_admin("/status")[1])
    assert status["needs_restart"] == ["models"]
    assert status["limits"]["small"]["requests"] == "3/h"
    assert status["limits"]["monthly"]["quota_requests"] == "10/month"
    assert [worker["state"] for worker in status["workers"]] == ["ready"]
    assert "models" in place.gateway.ask_admin("/")[1]
    text = place.file.read_text()
    without = text[: text.index("auth:")] + text[text.index("limits:") :]
    assert "a restart is needed for: auth, models\n" in reload(place, (text, without))
    assert place.status("wrong") == 401, "nobody is let in by a file that forgot to say who may"
    assert place.status("key-of-acme") == 200
    assert "the settings stay as they are" in reload(place, ("tiers:", "tears:"))
    for _ in range(20):
        place.gateway.signal(signal.SIGHUP)
    reload(place, ("tears:", "tiers:"))
    eventually(lambda: "read again" in place.gateway.stderr.splitlines()[-1], 5, "the last reload")


# --- for which model ------------------------------------------------------------------------------------


def test_a_worker_is_asked_by_its_own_name(start: Start) -> None:
    place = start()
    for name, there in (("large", "vendor/large-v2"), ("big", "vendor/large-v2"), ("other", "other")):
        assert place.status("key-of-acme", said={**CHAT, "model": name}) == 200
        assert json.loads(place.upstream.requests[-1].body)["model"] == there


def test_models_that_are_not_served_or_not_allowed(start: Start) -> None:
    place = start()
    answer = place.ask(("x-api-key", "key-of-acme"), said={**CHAT, "model": "lagre"})
    assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "large" in answer.json()["error"]["message"]
    answer = place.ask(("x-api-key", "key-of-other"))
    assert (answer.status, answer.json()["error"]["code"]) == (403, "model_forbidden")
    assert place.status("key-of-other", said={**CHAT, "model": "other"}) == 200
    assert place.status("key-of-acme", path="/not/known") == 404


def test_each_tenant_is_told_of_its_own_models(start: Start) -> None:
    place = start()

    def listed(key: str) -> list[str]:
        answer = ask(place.gateway, request("GET", "/v1/models", ("x-api-key", key)))
        return [one["id"] for one in answer.json()["data"]]

    assert listed("key-of-acme") == ["big", "large", "other"]
    assert listed("key-of-other") == ["other"]

    def status_of(key: str, model: str, method: str = "GET") -> int:
        return ask(place.gateway, request(method, f"/v1/models/{model}", ("x-api-key", key))).status

    asked = len(place.upstream.requests)
    assert [status_of("key-of-acme", model) for model in ("large", "big", "b%69g", "huge", "")] == [
        200, 200, 200, 404, 404
    ]  # fmt: skip
    assert [status_of("key-of-other", model) for model in ("large", "other")] == [403, 200]
    card = ask(place.gateway, request("GET", "/v1/models/big", ("x-api-key", "key-of-acme"))).json()
    assert (card["id"], card["object"]) == ("big", "model")
    assert len(place.upstream.requests) == asked, "a worker may have another name for it"
    client = openai.OpenAI(base_url=f"{place.gateway.url}/v1", api_key="key-of-acme", max_retries=0)
    assert client.models.retrieve("big").id == "big"


def test_unknown_paths_go_where_the_settings_say(start: Start) -> None:
    place = start('passthrough: {"/custom/": other}')
    assert place.status("key-of-acme", path="/custom/thing") == 200
    assert place.upstream.requests[-1].target == "/custom/thing"
    assert place.status("key-of-acme", path="/elsewhere") == 404


# --- how much -------------------------------------------------------------------------------------------


def test_a_client_hears_of_one_kind_of_limits(start: Start) -> None:
    """Of the worker's own, or of relayd's where that has any for it."""
    place = start()
    theirs = [("X-RateLimit-Limit-Requests", "7"), ("x-ratelimit-reset-tokens", "1s"), ("X-Other", "1")]
    place.upstream.play(reply({}, 200, *theirs))
    limited = place.ask(("x-api-key", "key-of-small"))
    assert limited.header("x-ratelimit-limit-requests") == "3"
    assert limited.header("x-ratelimit-reset-tokens") is None
    assert limited.header("x-other") == "1"
    free = place.ask(("x-api-key", "key-of-acme"))
    assert free.header("x-ratelimit-limit-requests") == "7"
    assert free.header("x-ratelimit-reset-tokens") == "1s"


def test_requests_by_tier_with_all_that_clients_need_to_know(start: Start) -> None:
    place = start()
    answers = [place.ask(("x-api-key", "key-of-small")) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert [answer.header("x-ratelimit-remaining-requests") for answer in answers[:3]] == ["2", "1", "0"]
    assert answers[0].header("x-ratelimit-limit-requests") == "3"
    assert answers[3].json()["error"]["code"] == "requests_rate"
    assert 1190 <= int(answers[3].header("retry-after")) <= 1200
    assert place.status("key-of-acme") == 200, "another tenant has its own"


def test_a_refused_request_uses_nothing_up(start: Start) -> None:
    place = start()
    for said in ({**CHAT, "model": "unknown"}, {"model": 7}, {**CHAT, "model": "unknown"}, {}):
        assert place.status("key-of-small", said=said) in (400, 404)
    assert [place.status("key-of-small") for _ in range(4)] == [200, 200, 200, 429]


def test_one_at_a_time(start: Start) -> None:
    place = start()
    gate = Gate()
    place.upstream.play([{"gate": gate}, *reply({})])
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(place.status, "key-of-small")
        eventually(lambda: place.gateway.in_flight() == 1, 5, "the first to be under way")
        answer = place.ask(("x-api-key", "key-of-small"))
        assert (answer.status, answer.json()["error"]["code"]) == (429, "concurrency")
        gate.open()
        assert first.result(10) == 200
    place.gateway.wait_idle()
    place.upstream.play(reply({}))
    assert place.status("key-of-small") == 200


def test_tokens_are_reserved_and_settled(start: Start) -> None:
    place = start()
    place.upstream.play(reply({"usage": {"prompt_tokens": 100, "completion_tokens": 200}}))
    statuses = []
    for _ in range(6):
        answer = place.ask(("x-api-key", "key-of-counted"))
        statuses.append(answer.status)
    # 1,000 an hour: after three times 300 there are 100 left, which still cover a fourth's estimate.
    assert statuses == [200, 200, 200, 200, 429, 429]


def test_at_the_same_time_no_more_tokens_are_promised_than_there_are(start: Start) -> None:
    place, gate = start(), Gate()
    place.upstream.play([{"gate": gate}, *reply({"usage": {"prompt_tokens": 10, "completion_tokens": 1}})])
    said = {**CHAT, "max_tokens": 80}
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(place.status, "key-of-hundred", said=said) for _ in range(5)]
        eventually(lambda: sum(one.done() for one in asked) == 4, 5, "four to be refused")
        gate.open()
        assert sorted(one.result(10) for one in asked) == [200, 429, 429, 429, 429]


def test_what_a_worker_failed_to_answer_uses_no_tokens(start: Start) -> None:
    place = start()
    place.upstream.play(reply({"error": {"message": "no"}}, 500))
    assert [place.status("key-of-hundred", said={**CHAT, "max_tokens": 80}) for _ in range(10)] == [500] * 10
    place.upstream.play(reply({"usage": {"prompt_tokens": 10, "completion_tokens": 1}}))
    assert place.status("key-of-hundred", said={**CHAT, "max_tokens": 80}) == 200


def test_a_client_that_leaves_uses_what_its_worker_may_have_written(start: Start) -> None:
    """Nobody knows how much that was: what was written is counted by its events."""
    place, gate = start(), Gate()
    place.upstream.play([stream_head(), chunk(event("one")), chunk(event("two")), {"gate": gate}])
    said = json.dumps({**CHAT, "max_tokens": 900, "stream": True}).encode()
    with Client.to(place.gateway) as client:
        client.send(request("POST", "/v1/chat/completions", ("x-api-key", "key-of-thousand"), body=said))
        client.read(enough=b"two")
    place.gateway.wait_idle()
    gate.open()
    rows = json.loads(place.gateway.ask_admin("/status")[1])["tenants"]
    assert 900 < next(row["tokens_left"] for row in rows if row["tenant"] == "thousand") < 1000


def test_a_client_that_will_not_wait_pays_for_what_its_worker_read(start: Start) -> None:
    place = start()
    place.upstream.play([silence()])
    said = {**CHAT, "messages": [{"role": "user", "content": "x" * 2000}]}
    late = place.ask(("x-api-key", "key-of-thousand"), ("X-Relayd-Timeout-Ms", "300"), said=said)
    assert (late.status, late.json()["error"]["code"]) == (504, "deadline")
    rows = json.loads(place.gateway.ask_admin("/status")[1])["tenants"]
    assert 400 < next(row["tokens_left"] for row in rows if row["tenant"] == "thousand") < 600


def test_a_path_that_is_not_known_uses_tokens_too(start: Start) -> None:
    place = start('passthrough: {"/": other}')
    place.upstream.play(stream(event("a")))
    statuses = [place.status("key-of-counted", path="/v1/chat/%63ompletions") for _ in range(6)]
    assert statuses == [200, 200, 200, 429, 429, 429]


def test_streams_give_back_what_they_did_not_write(start: Start) -> None:
    place = start()
    usage = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
    place.upstream.play(stream(event("a"), f"data: {json.dumps(usage)}\n\n", "data: [DONE]\n\n"))
    said = {**CHAT, "max_tokens": 900, "stream": True}
    assert [place.status("key-of-thousand", said=said) for _ in range(5)] == [200] * 5


def test_where_nothing_is_left_a_stream_is_refused_before_a_worker_hears_of_it(start: Start) -> None:
    place = start()
    place.upstream.play(reply({"usage": {"prompt_tokens": 10, "completion_tokens": 990}}))
    assert place.status("key-of-hundred") == 200
    asked = len(place.upstream.requests)
    answer = place.ask(("x-api-key", "key-of-hundred"), said={**CHAT, "stream": True})
    assert (answer.status, answer.json()["error"]["code"]) == (429, "tokens_rate")
    assert 500 < int(answer.header("retry-after")) <= 600, "a debt of 900, and some more to reserve"
    assert len(place.upstream.requests) == asked


def test_fifty_at_once_on_a_quota_for_ten_pass_exactly_ten(start: Start) -> None:
    place = start()
    with ThreadPoolExecutor(50) as pool:
        statuses = list(pool.map(lambda _: place.status("key-of-monthly"), range(50)))
    assert sorted(statuses) == [200] * 10 + [429] * 40
    answer = place.ask(("x-api-key", "key-of-monthly"))
    assert answer.json()["error"]["code"] == "quota_exhausted"
    assert answer.json()["error"]["message"].startswith("API quota exhausted")
    assert 0 < int(answer.header("retry-after")) <= 31 * 86400


def test_a_quota_counts_what_is_under_way(start: Start) -> None:
    """All fifty have been answered or are at the worker before the first of them ends."""
    place = start()
    gate = Gate()
    place.upstream.play([{"gate": gate}, *reply({})])
    with ExitStack() as stack:
        clients = [stack.enter_context(Client.to(place.gateway)) for _ in range(50)]
        for client in clients:
            client.send(post_json("/v1/chat/completions", CHAT, ("x-api-key", "key-of-monthly")))
        metrics = place.gateway.metrics
        eventually(lambda: metrics().total("relayd_ratelimit_rejections_total") == 40, 10, "40 refusals")
        assert place.gateway.in_flight() == len(place.upstream.requests) == 10
        gate.open()
        statuses = [client.read().status for client in clients]
    assert sorted(statuses) == [200] * 10 + [429] * 40


# --- official clients -----------------------------------------------------------------------------------


def test_sdks_raise_what_they_should(start: Start) -> None:
    place = start()

    def chat(key: str, model: str) -> Any:
        client = openai.OpenAI(base_url=f"{place.gateway.url}/v1", api_key=key, max_retries=0)
        return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])

    def message(key: str, model: str) -> Any:
        client = anthropic.Anthropic(base_url=place.gateway.url, api_key=key, max_retries=0)
        return client.messages.create(model=model, max_tokens=5, messages=[{"role": "user", "content": "hi"}])

    for use, sdk in ((chat, openai), (message, anthropic)):
        for key, model, error in (
            ("wrong", "large", "AuthenticationError"),
            ("key-of-other", "large", "PermissionDeniedError"),
            ("key-of-acme", "unknown", "NotFoundError"),
        ):
            with pytest.raises(getattr(sdk, error)) as refused:
                use(key, model)
            assert refused.value.request_id


def test_sdks_are_told_of_requests_that_are_too_large(start: Start) -> None:
    """Both are still writing when the refusal comes, and have to see it and not a broken pipe."""
    place = start("max_body: 64KiB")
    long: list[Any] = [{"role": "user", "content": "x" * (16 << 20)}]
    with pytest.raises(openai.APIStatusError) as refused:
        openai.OpenAI(
            base_url=f"{place.gateway.url}/v1", api_key="key-of-acme", max_retries=0
        ).chat.completions.create(model="large", messages=long)
    assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")
    with pytest.raises(anthropic.RequestTooLargeError) as told:
        anthropic.Anthropic(base_url=place.gateway.url, api_key="key-of-acme", max_retries=0).messages.create(
            model="large", max_tokens=5, messages=long
        )
    assert told.value.status_code == 413
    assert told.value.type == "request_too_large"
    assert refused.value.request_id
    assert told.value.request_id


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_sdks_come_again_when_a_tenants_limit_says_so(start: Start, dialect: str) -> None:
    """One request a second: whoever comes again an instant too early is refused again."""
    place = start()
    place.file.write_text(place.file.read_text().replace("small: {requests: 3/h", "small: {requests: 1/s"))
    place.gateway.close()
    place.gateway = Gateway(arguments=("--config", str(place.file)))
    place.upstream.play(reply(OPENAI.whole("a") if dialect == "openai" else ANTHROPIC.whole("a")))

    def ask_as(retries: int) -> Any:
        if dialect == "openai":
            client = openai.OpenAI(
                base_url=f"{place.gateway.url}/v1", api_key="key-of-small", max_retries=retries
            )
            return client.chat.completions.create(model="large", messages=HELLO)
        other = anthropic.Anthropic(base_url=place.gateway.url, api_key="key-of-small", max_retries=retries)
        return other.messages.create(model="large", max_tokens=5, messages=HELLO)

    ask_as(0)
    with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as refused:
        ask_as(0)
    assert 0 < int(refused.value.response.headers["retry-after-ms"]) <= 1000
    for _ in range(2):
        ask_as(1)  # its one retry succeeds, since it waited for as long as it was told
    assert len(place.upstream.requests) == 3
