"""Keys from a URL: few fetches whatever comes, and the last good keys while there are no better ones."""

from __future__ import annotations

import asyncio
import functools

import pytest

from relayd.auth import jwks
from relayd.auth.base import WAIT, Refused, Tenant
from relayd.auth.material import read_material
from relayd.auth.strict import encode_base64url
from relayd.config import Auth, Jwt
from relayd.net import FetchError
from tests.auth.stage import (
    CASE_KEYS,
    ED25519,
    NOW,
    OTHER_RSA,
    P256,
    RSA,
    Clock,
    Issuer,
    authenticator,
    document,
    jwk,
    token,
    turns,
)

JWT = Jwt(algorithms=("RS256", "ES256", "EdDSA"), jwks=Issuer.URL, max_age=600.0, stale_for=3600.0)
A, B = jwk(RSA, "a"), jwk(OTHER_RSA, "b")
TOKEN_A, TOKEN_B = token(), token(key=OTHER_RSA, header={"kid": "b"})


class World:
    """An authenticator, its issuer and its clock."""

    def __init__(self, *entries, jwt: Jwt = JWT) -> None:
        self.issuer = Issuer(*entries)
        self.clock = Clock()
        self.who = authenticator(jwt, fetch=self.issuer, clock=self.clock)
        self.told = 0

    async def start(self) -> World:
        """Let the first fetch end."""
        self.who.poll()
        await turns()
        return self

    def ask(self, credential: bytes = TOKEN_A) -> object:
        """Return the verdict: True, WAIT or the reason for a refusal."""
        verdict = self.who.check(b"Bearer " + credential, None, NOW)
        if isinstance(verdict, Refused):
            return verdict.reason
        return isinstance(verdict, Tenant) or verdict

    async def ask_on(self, credential: bytes) -> object:
        """Return the verdict as a request gets it, which waits if it is told to."""
        verdict = self.ask(credential)
        if verdict is WAIT and self.who.when_known(self.tell):
            await turns()
            verdict = self.ask(credential)
        return verdict

    def tell(self) -> None:
        self.told += 1

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, as `run` sees it."""
        self.clock.move(seconds)
        self.who.poll()
        await turns()


def on_a_loop(test):
    """Run an async test, and leave no task behind."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        async def whole():
            await test(*args, **kwargs)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert not others

        asyncio.run(whole())

    return run


def other_kids(count: int, first: int = 0):
    """Return tokens with as many kids that nobody knows."""
    return [token(header={"kid": f"kid-{number}"}) for number in range(first, first + count)]


@on_a_loop
async def test_nobody_is_let_in_before_there_are_keys():
    world = World(A)
    world.issuer.gate.clear()
    await world.start()
    assert not world.who.ready
    assert world.ask() is WAIT
    assert world.who.when_known(world.tell)
    world.issuer.gate.set()
    await turns()
    assert world.told == 1
    assert world.who.ready
    assert world.ask() is True
    assert world.issuer.fetches == 1


@on_a_loop
async def test_a_url_that_is_down_at_the_start_is_asked_again():
    world = World(A)
    world.issuer.failure = FetchError("connection refused")
    await world.start()
    for _ in range(100):
        assert await world.ask_on(TOKEN_A) == "no_keys"
    assert world.issuer.fetches == 1
    assert world.who.source.failure == "connection refused"
    world.issuer.failure = None
    await world.pass_time(jwks.FIRST_RETRY_S)
    assert world.who.ready
    assert world.ask() is True
    assert world.who.source.failure == ""


@on_a_loop
async def test_the_first_request_makes_the_first_fetch():
    world = World(A)
    assert await world.ask_on(TOKEN_A) is True


@on_a_loop
async def test_the_last_keys_count_while_the_url_is_down():
    world = await World(A).start()
    world.issuer.failure = FetchError("no answer within 2 s")
    for passed in range(100, 4200, 100):
        await world.pass_time(100)
        assert world.ask() is True
        assert world.who.keys_age_s == passed
    assert world.issuer.fetches == 1 + 4200 // 100 - 1 - 5  # first at 600 s, then with each look
    await world.pass_time(101)
    assert not world.who.ready
    assert await world.ask_on(TOKEN_A) == "no_keys"
    world.issuer.failure = None
    await world.pass_time(30)
    assert world.ask() is True


@on_a_loop
async def test_a_flood_of_unknown_kids_makes_one_fetch():
    world = await World(A).start()
    for credential in other_kids(100):
        for _ in range(100):
            assert await world.ask_on(credential) == "unknown_kid"
            world.clock.move(0.0001)
    assert world.issuer.fetches == 2
    assert world.ask() is True


@on_a_loop
async def test_ten_thousand_unknown_kids_at_once_make_one_fetch():
    world = await World(A).start()
    world.issuer.gate.clear()
    template = token().split(b".")
    verdicts = []
    for number in range(10_000):
        header = b'{"alg":"RS256","kid":"%05d"}' % number
        credential = b".".join([encode_base64url(header), *template[1:]])
        verdict = world.ask(credential)
        if verdict is WAIT:
            assert world.who.when_known(world.tell)
        verdicts.append(verdict)
    assert verdicts.count(WAIT) == jwks.MOST_WAITING  # the others are told at once
    assert world.ask() is True  # nobody with a known kid waits for anything
    world.issuer.gate.set()
    await turns(200)
    assert world.told == jwks.MOST_WAITING
    assert world.issuer.fetches == 2
    assert len(world.who.source._missing) <= jwks.MOST_MISSING
    assert world.who.source._asked == set()


@on_a_loop
async def test_one_fetch_in_each_cool_down():
    world = await World(A).start()
    credentials = iter(other_kids(60))
    for _ in range(20):
        await world.ask_on(next(credentials))
        await world.pass_time(10)
    assert world.issuer.fetches == 1 + 7  # at 0, 30 ... 180 s


@on_a_loop
async def test_a_new_key_works_after_one_fetch():
    world = await World(A).start()
    world.issuer.publish(A, B)
    assert await world.ask_on(TOKEN_B) is True
    assert world.ask() is True
    assert world.issuer.fetches == 2


@on_a_loop
async def test_the_keys_of_the_cases_are_changed():
    jwt = Jwt(jwks=Issuer.URL, issuer=CASE_KEYS["issuer"], audience=CASE_KEYS["audience"])
    world = World(*CASE_KEYS["jwks"]["keys"], jwt=jwt)
    rotated = CASE_KEYS["token_after_rotation"].encode()
    assert await world.ask_on(rotated) == "unknown_kid"
    world.issuer.publish(*CASE_KEYS["jwks_after_rotation"]["keys"])
    world.clock.move(30)
    assert await world.ask_on(rotated) is True


@on_a_loop
async def test_a_withdrawn_key_is_refused_although_no_new_one_is_used():
    world = await World(A).start()
    assert world.ask() is True
    world.issuer.publish(B)
    await world.pass_time(599)
    assert world.ask() is True
    await world.pass_time(1)
    assert await world.ask_on(TOKEN_A) == "unknown_kid"


@on_a_loop
async def test_keys_that_stay_keep_what_is_remembered():
    world = await World(A).start()
    world.ask()
    await world.pass_time(600)
    assert world.issuer.fetches == 2
    assert world.who.remembered == 1
    world.issuer.publish(A, B)
    await world.pass_time(600)
    assert world.who.remembered == 0


@on_a_loop
async def test_a_kid_that_was_not_brought_waits_for_no_other_fetch():
    world = await World(A).start()
    await world.ask_on(TOKEN_B)
    world.issuer.gate.clear()
    world.who.source._start()
    assert world.ask(TOKEN_B) == "unknown_kid"
    assert world.ask(other_kids(1)[0]) is WAIT
    world.issuer.gate.set()
    await turns()


@on_a_loop
async def test_those_who_come_during_a_fetch_wait_for_the_same():
    world = await World(A).start()
    world.issuer.publish(A, B)
    world.issuer.gate.clear()
    for _ in range(5):
        assert world.ask(TOKEN_B) is WAIT
        assert world.who.when_known(world.tell)
        await turns()
    world.issuer.gate.set()
    await turns()
    assert world.told == 5
    assert world.ask(TOKEN_B) is True
    assert world.issuer.fetches == 2


@on_a_loop
async def test_a_kid_that_is_too_long_is_not_asked_for():
    world = await World(A).start()
    assert world.ask(token(header={"kid": "k" * 256})) == "unknown_kid"
    assert world.ask(token(header={"kid": ""})) == "unknown_kid"


HOSTILE = [
    ("not 200", 302, document(B)),
    ("an error", 500, document(B)),
    ("too many", 200, document(*[jwk(RSA, str(kid)) for kid in range(101)])),
    ("too large", 200, document(B) + b" " * (256 << 10)),
    ("one kid twice", 200, document(B, jwk(RSA, "b"))),
    ("a secret", 200, document(B, {"kty": "oct", "kid": "s", "k": "c2VjcmV0"})),
    ("e is 1", 200, document(B, jwk(RSA, "e", e="AQ"))),
    ("only an unusable one", 200, document(jwk(RSA, "b", use="enc"))),
    ("no JSON", 200, b"<html>"),
    ("nothing", 200, b""),
]


@pytest.mark.parametrize(("what", "status", "body"), HOSTILE, ids=[row[0] for row in HOSTILE])
def test_a_hostile_answer_changes_nothing(what, status, body):
    @on_a_loop
    async def run():
        world = await World(A).start()
        world.issuer.status, world.issuer.body = status, body
        await world.pass_time(600)
        assert world.issuer.fetches == 2
        assert world.who.source.failures == 1
        assert world.ask() is True
        assert await world.ask_on(TOKEN_B) == "unknown_kid"

    run()


@pytest.mark.parametrize("failure", [FetchError("x"), TimeoutError(), OSError("x"), RuntimeError("x")])
def test_whatever_a_fetch_raises_is_a_fetch_that_failed(failure):
    @on_a_loop
    async def run():
        world = await World(A).start()
        world.issuer.failure = failure
        assert await world.ask_on(TOKEN_B) == "unknown_kid"
        assert world.told == 1
        assert world.who.source.failures == 1
        assert world.ask() is True

    run()


@on_a_loop
async def test_a_url_that_hangs_is_given_up():
    world = await World(A).start()
    world.issuer.gate.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jwks, "FETCH_S", 0.02)
        assert world.ask(TOKEN_B) is WAIT
        done = asyncio.Event()
        assert world.who.when_known(done.set)
        assert world.ask() is True
        await asyncio.wait_for(done.wait(), 5)
    assert world.ask(TOKEN_B) == "unknown_kid"
    assert world.who.source.failure == "no answer within 0.02 s"


@on_a_loop
async def test_closing_tells_those_who_wait():
    world = World(A)
    world.issuer.gate.clear()
    assert world.ask() is WAIT
    assert world.who.when_known(world.tell)
    world.who.close()
    await turns()
    assert world.told == 1


@on_a_loop
async def test_a_reload_keeps_the_keys_of_the_same_url():
    world = await World(A).start()
    world.ask()
    world.who.adopt(read_material(Auth(jwt=Jwt(**{**fields(JWT), "audience": "relayd", "max_age": 60.0}))))
    assert world.who.remembered == 0
    assert world.ask() is True
    await world.pass_time(59)
    assert world.issuer.fetches == 1
    await world.pass_time(1)
    assert world.issuer.fetches == 2


def fields(jwt: Jwt) -> dict:
    """Return the settings as arguments."""
    return {name: getattr(jwt, name) for name in jwt.__struct_fields__}


@on_a_loop
async def test_a_reload_with_another_url_forgets_the_keys():
    world = await World(A).start()
    world.ask()
    world.who.adopt(read_material(Auth(jwt=Jwt(**{**fields(JWT), "jwks": "https://other.test/"}))))
    assert not world.who.ready
    assert world.ask() is WAIT
    world.who.close()


@on_a_loop
async def test_run_fetches_when_it_is_time():
    world = World(A)
    task = asyncio.create_task(world.who.run())
    await turns()
    assert world.who.ready
    task.cancel()
    await asyncio.wait([task])


@on_a_loop
async def test_other_algorithms_from_a_url():
    world = await World(jwk(P256, "ec"), jwk(ED25519, "ed")).start()
    assert world.ask(token(key=P256, algorithm="ES256", header={"kid": "ec"})) is True
    assert world.ask(token(key=ED25519, algorithm="EdDSA", header={"kid": "ed"})) is True
    assert world.ask(token(key=ED25519, algorithm="EdDSA", header={"kid": "ec"})) == "bad_algorithm"


@on_a_loop
async def test_only_the_last_missing_kids_are_remembered():
    world = await World(A).start()
    for first in (0, 600, 1200):
        world.issuer.gate.clear()
        for credential in other_kids(600, first):
            assert world.ask(credential) is WAIT
            world.who.when_known(world.tell)
        world.issuer.gate.set()
        await turns(100)
        world.clock.move(30)
    missing = world.who.source._missing
    assert len(missing) == jwks.MOST_MISSING
    assert "kid-0" not in missing
    assert "kid-1799" in missing
