"""A tenant has what its tier allows, to the unit and the nanosecond, and nothing is left of what ended."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from relayd._fast.head import rate_lines
from relayd.config import Allowance, Tier
from relayd.limits.grants import Grant
from relayd.limits.scopes import Denial
from relayd.limits.tenants import KNOWN_AT_MOST, SHOWN_AT_MOST, Limiter
from relayd.readers import QuotaOf, RateOf

S = 1_000_000_000
NOW = 10**15
WALL = datetime(2026, 3, 14, 15, 30, tzinfo=UTC).timestamp()


def limiter(slots: int = 64, **tiers: Tier) -> Limiter:
    return Limiter(tiers, NOW, WALL, slots)


def admit(known: Limiter, tenant: str = "acme", tier: str = "default", now: int = NOW, wall: float = WALL):
    return known.admit(tenant, tier, now, wall)


def use(known: Limiter, tenant: str = "acme", now: int = NOW, wall: float = WALL):
    return next(row for row in known.usage(now, wall) if row.tenant == tenant)


# --- which limits -------------------------------------------------------------------------------------


def test_a_tier_that_is_not_known_is_the_default_and_without_that_nothing_is_limited():
    known = limiter(default=Tier(requests=RateOf(1, 1.0)), gold=Tier(requests=RateOf(3, 1.0)))
    assert known.tier("gold").name == "gold"
    assert known.tier("silver").name == known.tier("").name == "default"
    free = limiter(gold=Tier(requests=RateOf(1, 1.0)))
    grants = [admit(free, tier="silver") for _ in range(1000)]
    assert all(isinstance(grant, Grant) for grant in grants)
    assert all(free.reserve(grant, "m", 10**9, NOW, WALL) is None for grant in grants)
    assert free.lines(grants[0], NOW) == free.lines_of("acme", "silver", NOW) == b""
    assert use(free).in_flight == 1000
    for grant in grants:
        free.settle(grant, 10**9, NOW, WALL)
    assert use(free)[1:] == ("", 0, None, None, None, None)


@pytest.mark.parametrize(
    ("tier", "code", "retry_after_s", "detail"),
    [
        (Tier(requests=RateOf(10, 60.0)), "requests_rate", 6.0, "10 requests a minute"),
        (Tier(requests=RateOf(10, 1.0)), "requests_rate", 0.1, "10 requests a second"),
        (Tier(requests=RateOf(10, 86400.0)), "requests_rate", 8640.0, "10 requests a day"),
        (Tier(concurrency=10), "concurrency", 1.0, "10 requests at the same time"),
        (Tier(quota_requests=QuotaOf(10, "hour")), "quota_exhausted", 1800.0, "10 requests an hour"),
        (Tier(quota_requests=QuotaOf(10, "day")), "quota_exhausted", 30600.0, "10 requests a day"),
        (Tier(quota_requests=QuotaOf(10, "month")), "quota_exhausted", 1499400.0, "10 requests a month"),
    ],
)
def test_fifty_at_once_where_ten_are_allowed(tier, code, retry_after_s, detail):
    known = limiter(default=tier)
    answers = [admit(known) for _ in range(50)]
    assert sum(isinstance(answer, Grant) for answer in answers) == 10
    assert answers[10:] == [Denial(code, retry_after_s, detail)] * 40
    assert isinstance(admit(known, "somebody else"), Grant)


@pytest.mark.parametrize(
    ("tier", "code", "retry_after_s", "detail"),
    [
        (Tier(tokens=RateOf(1000, 60.0)), "tokens_rate", 6.0, "1,000 tokens a minute"),
        (Tier(quota=QuotaOf(1000, "hour")), "quota_exhausted", 1800.0, "1,000 tokens an hour"),
        (
            Tier(models={"m": Allowance(requests=RateOf(10, 3600.0))}),
            "requests_rate", 360.0, "10 requests an hour for the model m",
        ),
        (
            Tier(models={"m": Allowance(tokens=RateOf(1000, 1.0))}),
            "tokens_rate", 0.1, "1,000 tokens a second for the model m",
        ),
        (
            Tier(models={"m": Allowance(concurrency=10)}),
            "concurrency", 1.0, "10 requests at the same time for the model m",
        ),
        (
            Tier(models={"m": Allowance(quota=QuotaOf(1000, "day"))}),
            "quota_exhausted", 30600.0, "1,000 tokens a day for the model m",
        ),
        (
            Tier(models={"m": Allowance(quota_requests=QuotaOf(10, "day"))}),
            "quota_exhausted", 30600.0, "10 requests a day for the model m",
        ),
    ],
)  # fmt: skip
def test_fifty_reservations_at_once_where_there_is_room_for_ten(tier, code, retry_after_s, detail):
    known = limiter(default=tier)
    grants = [admit(known) for _ in range(50)]
    answers = [known.reserve(grant, "m", 100, NOW, WALL) for grant in grants]
    assert answers == [None] * 10 + [Denial(code, retry_after_s, detail)] * 40
    assert (known.reserve(admit(known), "other", 100, NOW, WALL) is None) == bool(tier.models)


# --- all or nothing -----------------------------------------------------------------------------------

RICH = Tier(
    requests=RateOf(100, 60.0),
    tokens=RateOf(10_000, 60.0),
    concurrency=50,
    quota=QuotaOf(20_000, "day"),
    quota_requests=QuotaOf(200, "day"),
)


def but(limits: type, **change) -> Tier | Allowance:
    """Return RICH limits of which one is changed."""
    names = ["requests", "tokens", "concurrency", "quota", "quota_requests"]
    return limits(**{name: getattr(RICH, name) for name in names} | change)


NARROW = [
    {"requests": RateOf(1, 60.0)},
    {"tokens": RateOf(50, 60.0)},
    {"concurrency": 1},
    {"quota": QuotaOf(50, "day")},
    {"quota_requests": QuotaOf(1, "day")},
]


@pytest.mark.parametrize("narrow", NARROW, ids=lambda narrow: next(iter(narrow)))
@pytest.mark.parametrize("of_model", [False, True])
def test_what_is_denied_uses_nothing_of_any_limit(narrow, of_model):
    tier = but(Tier, models={"m": but(Allowance, **narrow)}) if of_model else but(Tier, **narrow)
    known = limiter(default=tier)
    first = admit(known)
    assert known.reserve(first, "m", 50, NOW, WALL) is None
    before = use(known)
    for _ in range(20):
        answer = admit(known)
        if isinstance(answer, Grant):
            grant, answer = answer, known.reserve(answer, "m", 50, NOW, WALL)
            assert use(known)[4:] == (before.tokens_left, before.quota_requests_used + 1, before.quota_used)
            known.refund(grant, NOW, WALL)
        assert isinstance(answer, Denial)
        assert use(known) == before
    known.refund(first, NOW, WALL)
    assert use(known)[2:] == (0, tier.requests.units, tier.tokens.units, 0, 0)
    second = admit(known)
    assert isinstance(second, Grant)
    assert known.reserve(second, "m", 50, NOW, WALL) is None


def test_the_wait_is_that_of_the_limit_that_lasts_longest():
    known = limiter(default=Tier(requests=RateOf(2, 60.0), concurrency=2, quota_requests=QuotaOf(2, "day")))
    grants = [admit(known) for _ in range(2)]
    assert admit(known).code == "quota_exhausted"
    known.refund(grants.pop(), NOW, WALL)
    assert isinstance(admit(known), Grant)
    known = limiter(default=Tier(requests=RateOf(2, 60.0), concurrency=2))
    grants = [admit(known) for _ in range(2)]
    assert admit(known) == Denial("requests_rate", 30.0, "2 requests a minute")
    assert admit(known, now=NOW + 30 * S) == Denial("concurrency", 1.0, "2 requests at the same time")


def test_an_estimate_that_is_larger_than_all_there_ever_is_takes_all_there_is():
    known = limiter(default=Tier(tokens=RateOf(100, 60.0), quota=QuotaOf(150, "day")))
    for tokens in (101, 10**30):
        grant = admit(known)
        assert known.reserve(grant, "m", tokens, NOW, WALL) is None
        assert use(known)[4:] == (0, None, min(tokens, 150))
        known.settle(grant, 0, NOW, WALL)
        assert use(known)[4:] == (100, None, 0)


# --- ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "tokens_left", "quota_used"),
    [(None, 9900, 100), (0, 10_000, 0), (30, 9970, 30), (100, 9900, 100), (400, 9600, 400), (-5, 10_000, 0)],
)
def test_what_was_reserved_becomes_what_was_used(used, tokens_left, quota_used):
    known = limiter(default=but(Tier, models={"m": but(Allowance)}))
    grant = admit(known)
    known.reserve(grant, "m", 100, NOW, WALL)
    assert use(known)[2:] == (1, 99, 9900, 1, 100)
    known.settle(grant, used, NOW, WALL)
    known.settle(grant, 5000, NOW, WALL)
    known.refund(grant, NOW, WALL)
    assert known.reserve(grant, "m", 100, NOW, WALL) is None
    assert use(known)[2:] == (0, 99, tokens_left, 1, quota_used)
    of_model = known.tier("default").models["m"]
    tenant = grant.tenant
    assert of_model.slots.count_of(tenant.low, tenant.high) == 0
    assert of_model.tokens.left_of(tenant.low, tenant.high, NOW) == tokens_left
    assert of_model.quota.used(tenant, WALL) == quota_used


def test_a_refund_is_the_end_too():
    known = limiter(default=RICH)
    for reserved in (0, 100):
        grant = admit(known)
        known.reserve(grant, "m", reserved, NOW, WALL)
        known.refund(grant, NOW, WALL)
        known.refund(grant, NOW, WALL)
        known.settle(grant, 5000, NOW, WALL)
        assert use(known)[2:] == (0, 100, 10_000, 0, 0)


def test_reserving_twice_is_reserving_once():
    known = limiter(default=but(Tier, models={"m": but(Allowance)}))
    grant = admit(known)
    for _ in range(3):
        assert known.reserve(grant, "m", 100, NOW, WALL) is None
    assert use(known)[2:] == (1, 99, 9900, 1, 100)
    known.settle(grant, 0, NOW, WALL)
    assert use(known)[2:] == (0, 99, 10_000, 1, 0)


def test_what_was_used_beyond_the_bucket_is_waited_for():
    known = limiter(default=Tier(tokens=RateOf(100, 60.0)))
    grant = admit(known)
    known.reserve(grant, "m", 10, NOW, WALL)
    known.settle(grant, 150, NOW, WALL)
    assert use(known).tokens_left == 0
    denied = known.reserve(admit(known), "m", 0, NOW, WALL)
    assert denied == Denial("tokens_rate", 30.0, "100 tokens a minute")
    assert known.reserve(admit(known), "m", 100, NOW, WALL).retry_after_s == 90.0
    assert known.reserve(admit(known), "m", 100, NOW + 90 * S, WALL) is None


def test_tokens_that_nobody_reserved_are_charged():
    known = limiter(default=RICH)
    known.settle(admit(known), 40, NOW, WALL)
    assert use(known)[2:] == (0, 99, 9960, 1, 40)
    known.settle(admit(known), None, NOW, WALL)
    assert use(known)[2:] == (0, 98, 9960, 2, 40)


def test_a_thousand_random_endings_leave_nothing():
    chance = random.Random(3)
    known = limiter(slots=256, default=but(Tier, models={"m": but(Allowance, concurrency=5)}))
    running, requests, tokens = [], {}, {}
    for _ in range(1000):
        name = f"tenant-{chance.randrange(5)}"
        grant = admit(known, name)
        if isinstance(grant, Grant):
            estimate = chance.randrange(200)
            if known.reserve(grant, chance.choice(["m", "other"]), estimate, NOW, WALL) is not None:
                known.refund(grant, NOW, WALL)
            else:
                running.append((name, grant, estimate))
        while running and chance.random() < 0.5:
            name, grant, estimate = running.pop(chance.randrange(len(running)))
            how = chance.choice(["refund", "estimate", 0, 0, chance.randrange(400)])
            if how == "refund":
                known.refund(grant, NOW, WALL)
                continue
            used = estimate if how == "estimate" else how
            known.settle(grant, None if how == "estimate" else how, NOW, WALL)
            requests[name] = requests.get(name, 0) + 1
            tokens[name] = tokens.get(name, 0) + used
    for _, grant, _ in running:
        known.refund(grant, NOW, WALL)
    assert len(requests) == 5
    for row in known.usage(NOW, WALL):
        had, spent = requests[row.tenant], tokens[row.tenant]
        assert row[2:] == (0, 100 - had, 10_000 - spent, had, spent)


# --- the calendar -------------------------------------------------------------------------------------


def test_a_reservation_of_last_month_does_not_come_back_in_this_one():
    border = datetime(2026, 4, 1, tzinfo=UTC).timestamp()
    known = limiter(default=Tier(quota=QuotaOf(100, "month"), quota_requests=QuotaOf(2, "month")))
    long, refused = admit(known, wall=border - 1), admit(known, wall=border - 1)
    known.reserve(long, "m", 80, NOW, border - 1)
    known.reserve(refused, "m", 20, NOW, border - 1)
    assert admit(known, wall=border - 1) == Denial("quota_exhausted", 1.0, "2 requests a month")
    short = admit(known, wall=border)
    assert known.reserve(short, "m", 50, NOW, border) is None
    known.settle(long, 10, NOW, border)
    known.refund(refused, NOW, border)
    assert use(known, wall=border)[5:] == (1, 50)
    known.settle(short, 60, NOW, border)
    assert use(known, wall=border)[5:] == (1, 60)


@pytest.mark.parametrize("window", ["hour", "day", "month"])
def test_waiting_for_the_end_of_a_window_is_enough_and_nothing_less_is(window):
    known = limiter(default=Tier(quota_requests=QuotaOf(1, window)))
    for wall in (WALL + 0.123, WALL + 86_400 * 16 + 29_999.5):
        admit(known, wall=wall)
        wait_s = admit(known, wall=wall).retry_after_s
        assert isinstance(admit(known, wall=wall + wait_s - 0.001), Denial)
        assert isinstance(admit(known, wall=wall + wait_s), Grant)


def test_a_clock_that_jumps_an_hour_back_and_forth_denies_nobody_forever():
    known = limiter(default=Tier(quota=QuotaOf(10, "hour"), quota_requests=QuotaOf(10, "hour")))
    granted = 0
    for step in range(200):
        wall = WALL + 3600 * (step % 2)
        answer = admit(known, wall=wall)
        if isinstance(answer, Grant):
            granted += 1
            known.reserve(answer, "m", 1, NOW, wall)
            known.settle(answer, 1 + step % 3, NOW, WALL + 3600 * (step % 3))
        else:
            assert 0 < answer.retry_after_s <= 2 * 3600
    assert 10 <= granted <= 21  # the two hours' quotas, and not one for each jump
    denied = admit(known, wall=WALL)
    assert isinstance(admit(known, wall=WALL + denied.retry_after_s), Grant)


@pytest.mark.parametrize("wrong", [WALL + 3 * 86_400 * 365, 4e9, 1e12, float("inf"), -1e9, 0.0])
def test_a_clock_that_was_wrong_leaves_nothing_behind(wrong):
    known = limiter(default=Tier(quota=QuotaOf(10, "day"), quota_requests=QuotaOf(1, "month")))
    grant = admit(known, wall=wrong)
    assert known.reserve(grant, "m", 10, NOW, wrong) is None
    assert isinstance(admit(known, wall=wrong), Denial)
    known.settle(grant, 20, NOW, WALL)
    again = admit(known)
    assert isinstance(again, Grant)


# --- what is told -------------------------------------------------------------------------------------


def test_an_answer_tells_what_is_limited():
    known = limiter(
        default=Tier(requests=RateOf(600, 60.0), tokens=RateOf(100, 60.0)), bare=Tier(concurrency=1)
    )
    grant = admit(known)
    known.reserve(grant, "m", 40, NOW, WALL)
    assert known.lines(grant, NOW + 20_000_000) == (
        b"X-RateLimit-Limit-Requests: 600\r\n"
        b"X-RateLimit-Remaining-Requests: 599\r\n"
        b"X-RateLimit-Reset-Requests: 80ms\r\n"
        b"X-RateLimit-Limit-Tokens: 100\r\n"
        b"X-RateLimit-Remaining-Tokens: 60\r\n"
        b"X-RateLimit-Reset-Tokens: 23.98s\r\n"
    )
    assert known.lines_of("acme", "default", NOW + 20_000_000) == known.lines(grant, NOW + 20_000_000)
    assert known.lines(admit(known, "initech", "bare"), NOW) == b""
    for _ in range(599):
        admit(known)
    denied = known.lines_of("acme", "default", NOW)
    assert b"Remaining-Requests: 0\r\nX-RateLimit-Reset-Requests: 1m0s\r\n" in denied


def test_of_two_rates_the_one_of_which_less_is_left_is_told():
    of_model = Allowance(requests=RateOf(10, 1.0), tokens=RateOf(1000, 1.0))
    known = limiter(default=Tier(requests=RateOf(20, 1.0), models={"m": of_model}))
    grant, other = admit(known), admit(known)
    known.reserve(grant, "m", 100, NOW, WALL)
    known.reserve(other, "other", 100, NOW, WALL)
    assert b"Remaining-Requests: 9\r\n" in known.lines(grant, NOW)
    assert b"Remaining-Tokens: 900\r\n" in known.lines(grant, NOW)
    assert b"Remaining-Requests: 18\r\n" in known.lines(other, NOW)
    assert b"Tokens" not in known.lines(other, NOW)
    for _ in range(15):
        admit(known)
    assert b"Limit-Requests: 20\r\nX-RateLimit-Remaining-Requests: 3\r\n" in known.lines(grant, NOW)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"), (1, "1ms"), (12 * 10**6, "12ms"), (999 * 10**6, "999ms"), (999 * 10**6 + 1, "1s"),
        (S, "1s"), (1_500_000_000, "1.5s"), (1_050_000_000, "1.05s"), (59_999 * 10**6, "59.999s"),
        (60 * S, "1m0s"), (86_400_000_000, "1m26.4s"), (360 * S, "6m0s"), (3600 * S, "1h0m0s"),
        (90_061_001 * 10**6, "25h1m1.001s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_go_writes_them(ns, text):
    assert rate_lines(b"Tokens", 0, 0, ns).endswith(f"-Reset-Tokens: {text}\r\n".encode())


def test_status_shows_the_tenants_that_were_seen_last_and_no_more_names_are_kept():
    known = limiter(slots=1 << 17, default=Tier(requests=RateOf(5, 86400.0)))
    for number in range(KNOWN_AT_MOST * 2):
        known.settle(admit(known, f"tenant-{number}", now=NOW + number), None, NOW, WALL)
    rows = known.usage(NOW + KNOWN_AT_MOST * 2, WALL)
    last = KNOWN_AT_MOST * 2 - 1
    assert [row.tenant for row in rows] == [f"tenant-{last - at}" for at in range(SHOWN_AT_MOST)]
    assert len(known.known) <= KNOWN_AT_MOST
    first = [admit(known, "tenant-0") for _ in range(5)]  # forgotten by name, and counted all the same
    assert sum(isinstance(answer, Grant) for answer in first) == 4


@pytest.mark.parametrize("name", ["", "a" * 10_000, "\udcff", "acme\r\nX: y", "Ω"])
def test_any_name_may_be_a_tenant(name):
    known = limiter(default=Tier(concurrency=1))
    assert isinstance(admit(known, name), Grant)
    assert isinstance(admit(known, name), Denial)


def test_what_was_used_in_one_tier_is_used_in_another():
    both = {"concurrency": 2, "quota": QuotaOf(100, "day"), "quota_requests": QuotaOf(2, "day")}
    known = limiter(free=Tier(**both), paid=Tier(**both | {"quota_requests": QuotaOf(3, "day")}))
    assert isinstance(admit(known, tier="free"), Grant)
    grant = admit(known, tier="paid")
    assert known.reserve(grant, "m", 100, NOW, WALL) is None
    assert admit(known, tier="free").code == "quota_exhausted"
    assert admit(known, tier="paid").code == "concurrency"
    assert use(known).quota_used == 100


# --- a table that is too small ------------------------------------------------------------------------


def test_in_tables_that_are_too_small_nobody_is_denied_what_he_could_have_had():
    chance = random.Random(5)
    tier = Tier(requests=RateOf(10, 60.0), concurrency=2, quota_requests=QuotaOf(12, "day"))
    known = limiter(slots=8, default=tier)
    running, requests, under_way = [], dict.fromkeys(range(40), 0), dict.fromkeys(range(40), 0)
    for _ in range(3000):
        number = chance.randrange(40)
        answer = admit(known, f"tenant-{number}")
        if isinstance(answer, Grant):
            requests[number] += 1
            under_way[number] += 1
            running.append((number, answer))
        else:
            assert requests[number] >= 10 or under_way[number] >= 2
        while len(running) > 20:
            number, grant = running.pop(chance.randrange(len(running)))
            under_way[number] -= 1
            known.settle(grant, None, NOW, WALL)
    scope = known.tier("default")
    assert scope.requests.forgotten > 0
    assert scope.slots.forgotten > 0
    assert scope.quota_requests.table.forgotten > 0
    for _, grant in running:
        known.settle(grant, None, NOW, WALL)
    assert all(row.in_flight == 0 for row in known.usage(NOW, WALL))
