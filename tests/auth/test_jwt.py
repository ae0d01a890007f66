"""A token is good only if one reader and every other would read the same good token in it.

Each row changes one thing of a good token; that the good one passes is a row, too.
"""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from relayd.auth.base import REASONS, Granted, Refused
from relayd.auth.jwt import Jws, Key, Keyring, judge, take_apart
from relayd.auth.strict import encode_base64url
from relayd.config import Jwt
from tests.auth.stage import (
    CLAIMS,
    ED25519,
    NOW,
    OTHER_RSA,
    P256,
    RSA,
    SECRET,
    pem,
    raw_token,
    token,
)

RULES = Jwt(issuer="https://id.test", audience="relayd", leeway=30.0)
KEYS = {
    "a": Key("RS256", RSA.public_key()),
    "hs": Key("HS256", SECRET),
    "ec": Key("ES256", P256.public_key()),
    "ed": Key("EdDSA", ED25519.public_key()),
}
RING = Keyring(KEYS)


def verdict_of(credential: bytes, rules: Jwt = RULES, ring: Keyring = RING, now: float = NOW):
    """Return what comes of a token."""
    jws = take_apart(credential)
    if isinstance(jws, Refused):
        return jws
    key = ring.find(jws.kid)
    return judge(jws, key, rules, now) if key is not None else Refused("unknown_kid")


def reason(credential: bytes, **parts) -> str:
    """Return why a token is refused, "" if it is not."""
    verdict = verdict_of(credential, **parts)
    return verdict.reason if isinstance(verdict, Refused) else ""


def hmac_token(key: bytes, kid: str = "a", digest: str = "sha256", cut: int | None = None, **header) -> bytes:
    """Return a token with an HMAC for a signature."""
    head = {"alg": "HS256", "kid": kid, **header}
    signed = b".".join(encode_base64url(json.dumps(part).encode()) for part in (head, CLAIMS))
    return signed + b"." + encode_base64url(hmac.digest(key, signed, digest)[:cut])


PEM = pem(RSA)
DER = RSA.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def unsigned(header: object) -> bytes:
    """Return a token without a signature."""
    return b".".join([*(encode_base64url(json.dumps(part).encode()) for part in (header, CLAIMS)), b""])


GOOD = token()
ALGORITHMS = [
    ("good", GOOD, ""),
    ("HS256", hmac_token(SECRET, "hs"), ""),
    ("ES256", token(key=P256, algorithm="ES256", header={"kid": "ec"}), ""),
    ("EdDSA", token(key=ED25519, algorithm="EdDSA", header={"kid": "ed"}), ""),
    *[
        (f"alg {name!r}, no signature", unsigned({"alg": name, "kid": "a"}), "bad_algorithm")
        for name in ("none", "None", "NONE", "nOnE", "none ", "", "HS256", "rs256", "PS256", "ES256", "RS1")
    ],
    *[
        (f"alg {value!r}", token(header={"alg": value}), "bad_algorithm")
        for value in (..., None, "", "rs256", 256, True, ["RS256"], {"RS256": 1}, "RS512", "PS256", "EdDSA")
    ],
    ("HMAC with the PEM", hmac_token(PEM), "bad_algorithm"),
    ("HMAC with the PEM, no newline", hmac_token(PEM.rstrip()), "bad_algorithm"),
    ("HMAC with the DER", hmac_token(DER), "bad_algorithm"),
    ("RS256 for the secret", token(header={"kid": "hs"}), "bad_algorithm"),
    ("HS256 said of an RSA signature", token(header={"alg": "HS256"}), "bad_algorithm"),
    (
        "HS256 said of an RSA signature by the secret",
        token(header={"alg": "HS256", "kid": "hs"}),
        "bad_signature",
    ),
    ("RS512 signed and said", token(algorithm="RS512"), "bad_algorithm"),
    ("RS512 signed, RS256 said", token(algorithm="RS512", header={"alg": "RS256"}), "bad_signature"),
    ("PS256 signed, RS256 said", token(algorithm="PS256", header={"alg": "RS256"}), "bad_signature"),
    ("ES256 on the RSA key", token(key=P256, algorithm="ES256"), "bad_algorithm"),
    ("HS512", hmac_token(SECRET, "hs", "sha512", alg="HS512"), "bad_algorithm"),
    ("HS512 said to be HS256", hmac_token(SECRET, "hs", "sha512"), "bad_signature"),
    ("HMAC cut to 16", hmac_token(SECRET, "hs", cut=16), "bad_signature"),
    ("HMAC with nothing", hmac_token(b"", "hs"), "bad_signature"),
    ("encrypted", b".".join([GOOD, b"eA", b"eA"]), "malformed"),
]


def part(number: int, of: bytes = GOOD) -> bytes:
    """Return one of a token's three parts."""
    return of.split(b".")[number]


def with_part(number: int, text: bytes) -> bytes:
    """Return the good token with a part replaced."""
    parts = GOOD.split(b".")
    parts[number] = text
    return b".".join(parts)


def hs_signed(text: bytes) -> bytes:
    """Return an HS256 token whose signature part is made from the right digest by `text`."""
    return part(0, hmac_token(SECRET, "hs")) + b"." + part(1, hmac_token(SECRET, "hs")) + b"." + text


HS_DIGEST = (
    hmac.new(SECRET, hmac_token(SECRET, "hs").rpartition(b".")[0], hashlib.sha256).hexdigest().encode()
)
HEADER = b'{"alg":"RS256","kid":"a"}'
PAYLOAD = json.dumps(CLAIMS).encode()
TAIL = PAYLOAD[1:]
SIGNATURES = [
    ("empty", with_part(2, b""), "bad_signature"),
    ("no part", GOOD.rpartition(b".")[0], "malformed"),
    ("cut", with_part(2, part(2)[:-4]), "bad_"),
    ("flipped", with_part(2, (b"A" if part(2)[:1] != b"A" else b"B") + part(2)[1:]), "bad_signature"),
    ("of another key", token(key=OTHER_RSA), "bad_signature"),
    ("of another payload", with_part(1, part(1, token(sub="root"))), "bad_signature"),
    ("of another header", with_part(0, encode_base64url(HEADER)), "bad_signature"),
    ("the digest as text", hs_signed(HS_DIGEST), "bad_"),
    ("base64url of that", hs_signed(encode_base64url(HS_DIGEST)), "bad_signature"),
    ("ES256 r=s=0", with_part(0, encode_base64url(b'{"alg":"ES256","kid":"ec"}')), "bad_signature"),
    (
        "zeros",
        b".".join([encode_base64url(b'{"alg":"ES256","kid":"ec"}'), part(1), encode_base64url(bytes(64))]),
        "bad_signature",
    ),
]
ENCODINGS = [
    ("padding", with_part(0, part(0) + b"="), "bad_encoding"),
    ("the other alphabet", with_part(2, part(2).replace(b"-", b"+") + b"+/"), "bad_encoding"),
    ("bits that mean nothing", with_part(2, part(2)[:-1] + bytes([part(2)[-1] + 1])), "bad_encoding"),
    *[
        (f"{mark!r} in it", with_part(2, part(2)[:9] + mark + part(2)[9:]), "bad_encoding")
        for mark in (b"\n", b" ", b"\0", b"\xe9", b"\xed\xb3\xa9", b"\r\n", b"*")
    ],
    ("a newline behind it", GOOD + b"\n", "bad_encoding"),
    *[
        (f"payload {text[:12]!r}", raw_token(HEADER, text), "bad_json")
        for text in (
            b"", b"null", b"[]", b'"x"', b"1", b"{", b"{}}", b"{'sub':1}", b"\xef\xbb\xbf" + PAYLOAD,
            PAYLOAD.decode().encode("utf-16"), PAYLOAD.decode().encode("utf-16-le"),
            b'{"x":"\xff",' + TAIL, b'{"x":"\xed\xa0\x80",' + TAIL, b'{"exp":1,' + TAIL,
            b'{"sub":"root",' + TAIL, b'{"x":NaN,' + TAIL, b'{"x":-Infinity,' + TAIL, b'{"x":1e400,' + TAIL,
            b'{"x":' + b"9" * 5000 + b"," + TAIL,
            b'{"x":' + b"[" * 2500 + b"]" * 2500 + b"," + TAIL, b'{"x":{"y":1,"y":2},' + TAIL,
            b'{"x":"\n",' + TAIL, b"//\n" + PAYLOAD,
        )
    ],
    *[
        (f"header {text[:24]!r}", raw_token(text, PAYLOAD), "bad_json")
        for text in (b"", b"null", b"[]", b'{"alg":"none","alg":"RS256","kid":"a"}', b"\xef\xbb\xbf" + HEADER)
    ],
    ("space inside JSON", raw_token(b'{ "alg" : "RS256",\n"kid":"a" }', b" " + PAYLOAD + b"\n"), ""),
    ("16 kB", token(pad="x" * 16_000), "too_long"),
    ("8,000 dots", b"." * 8000, "malformed"),
    ("empty", b"", "malformed"),
    ("two dots", b"..", "bad_json"),
]  # fmt: skip
HEADERS = [
    *[
        (f"{name}", token(header={name: value}), "bad_header")
        for name, value in {
            "jku": "https://evil.test/", "x5u": "https://evil.test/", "jwk": {"kty": "oct", "k": ""},
            "x5c": ["MIIB"], "crit": ["exp"], "b64": False, "zip": "DEF", "enc": "A256GCM",
        }.items()
    ],
    ("empty crit", token(header={"crit": []}), "bad_header"),
    *[
        (f"kid {str(kid)[:20]!r}", token(header={"kid": kid}), "unknown_kid")
        for kid in (
            "zzz", "A", "", "a ", "' OR 1=1--", "../../dev/null", "/dev/null", "$(id)", "a\0", "a\r\nX: y",
            "k" * 3000, "{0.__class__}", "%s", "\ud800", "https://evil.test/",
        )
    ],
    *[(f"kid {kid!r}", token(header={"kid": kid}), "bad_header") for kid in (1, None, True, ["a"], {"a": 1})],
    ("no kid, several keys", token(header={"kid": ...}), "unknown_kid"),
    *[
        (f"typ {kind!r}", token(header={"typ": kind}), "bad_type")
        for kind in ("dpop+jwt", "id+jwt", "", 1, None)
    ],
    *[(f"typ {kind!r}", token(header={"typ": kind}), "") for kind in (..., "jwt", "at+jwt", "AT+JWT")],
    ("a thumbprint", token(header={"x5t": "abc", "x5t#S256": "abc"}), ""),
]  # fmt: skip
CLAIMS_TRIED = [
    *[(f"exp {exp!r}", token(exp=exp), "bad_claim") for exp in (..., "1800000600", True, None, [], {})],
    *[(f"exp {exp!r}", token(exp=exp), "expired") for exp in (NOW - 31, NOW - 30, -5, 0, NOW - 30.5)],
    *[(f"exp {exp!r}", token(exp=exp), "") for exp in (NOW - 29, NOW + 0.5, NOW + 30 * 86400)],
    *[(f"exp {exp!r}", token(exp=exp), "too_far") for exp in (NOW + 36500 * 86400, 10**30, 1e300)],
    *[(f"nbf {nbf!r}", token(nbf=nbf), "not_yet_valid") for nbf in (NOW + 31, 10**30)],
    *[(f"nbf {nbf!r}", token(nbf=nbf), "bad_claim") for nbf in (str(NOW), None, True)],
    *[(f"nbf {nbf!r}", token(nbf=nbf), "") for nbf in (NOW, NOW + 30, -1)],
    ("iat in the future", token(iat=NOW + 3600), "not_yet_valid"),
    *[(f"iat {iat!r}", token(iat=iat), "bad_claim") for iat in ("x", None, False)],
    ("no iat", token(iat=...), ""),
    *[
        (f"iss {iss!r}", token(iss=iss), "wrong_issuer")
        for iss in (
            ..., "https://id.test/", "https://evil.test", "https://id.tes", "", ["https://id.test"], None, 1,
        )
    ],
    *[
        (f"aud {aud!r}", token(aud=aud), "wrong_audience")
        for aud in (
            ..., "other", "xrelaydx", "relay", "", [], [["relayd"]], {"relayd": 1}, None, ["relayd", 1],
        )
    ],
    ("aud in a list", token(aud=["other", "relayd"]), ""),
    *[
        (f"sub {str(sub)[:12]!r}", token(sub=sub), "bad_tenant")
        for sub in (
            ..., "", 1, None, ["alice"], "a\r\nb", "a\0", "\x1b[2J", "u" * 256, "u" * 2048, "\ud800",
            "a\u202eb",
        )
    ],
    *[
        (f"sub {sub[:12]!r}", token(sub=sub), "")
        for sub in ("u" * 255, "us\u00e9r", "use\u0301r", "\U0001f600", "a b")
    ],
    *[
        (f"models {value!r}", token(models=value), "bad_claim")
        for value in (None, 1, ["a", 1], {"a": 1}, [["a"]])
    ],
]  # fmt: skip
ROWS = [*ALGORITHMS, *SIGNATURES, *ENCODINGS, *HEADERS, *CLAIMS_TRIED]


@pytest.mark.parametrize(("what", "credential", "why"), ROWS, ids=[row[0] for row in ROWS])
def test_a_token_is_good_or_has_a_reason(what, credential, why):
    found = reason(credential)
    assert found == why or (why.endswith("_") and found.startswith(why))
    assert found == "" or found in REASONS


def granted(**changes) -> Granted:
    """Return what a good token is granted."""
    verdict = verdict_of(token(**changes))
    assert isinstance(verdict, Granted), verdict
    return verdict


def test_says_who_asks_and_until_when():
    verdict = granted(tier="gold")
    assert verdict.tenant.name == "alice"
    assert verdict.tenant.tier == "gold"
    assert verdict.tenant.models is None
    assert verdict.ends_at == NOW + 630


@pytest.mark.parametrize("tier", [None, 1, "", "no such name", "\x00", ["gold"], "g" * 200])
def test_what_is_no_tier_is_the_default_one(tier):
    assert granted(tier=tier).tenant.tier == "default"


@pytest.mark.parametrize(
    ("claim", "models"),
    [(["a", "b/c"], {"a", "b/c"}), ("a  b", {"a", "b"}), ([], set()), ("", set())],
)
def test_models_bound_what_it_is_for(claim, models):
    assert granted(models=claim).tenant.models == models


def test_claims_have_the_names_that_the_settings_say():
    rules = Jwt(tenant_claim="org", tier_claim="plan", models_claim="may")
    verdict = verdict_of(token(sub=1, org="acme", plan="gold", may=["m"], models=1, tier="x"), rules)
    assert verdict.tenant == type(verdict.tenant)("acme", "gold", frozenset({"m"}))


def test_issuer_and_audience_are_asked_for_only_if_configured():
    assert reason(token(iss=..., aud=...), rules=Jwt()) == ""
    assert reason(token(iss=5, aud=[[]]), rules=Jwt()) == ""


def test_a_lifetime_without_bound():
    assert reason(token(exp=NOW + 36500 * 86400), rules=Jwt(max_lifetime=0.0)) == ""


ONE = KEYS["a"]


@pytest.mark.parametrize(
    ("ring", "kid", "found"),
    [
        (Keyring({"a": ONE}, ONE), ..., True),
        (Keyring({"a": ONE}, ONE), "a", True),
        (Keyring({"a": ONE}, ONE), "b", False),
        (Keyring({"a": ONE}), ..., False),
        (Keyring(only=ONE, nameless=True), ..., True),
        (Keyring(only=ONE, nameless=True), "whatever", True),
        (Keyring(), ..., False),
        (Keyring(), "a", False),
    ],
)
def test_which_key_is_meant(ring, kid, found):
    assert (reason(token(header={"kid": kid}), ring=ring) == "") == found


def test_keys_do_not_show():
    assert SECRET.hex() not in repr(KEYS["hs"])
    assert repr(SECRET) not in repr(Keyring(KEYS))


PARTS = st.one_of(
    st.binary(max_size=60).map(encode_base64url),
    st.sampled_from(GOOD.split(b".")),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*CLAIMS, "alg", "kid"]), inner)
        ),
        max_leaves=8,
    ).map(lambda value: encode_base64url(json.dumps(value).encode())),
    st.binary(max_size=20),
)


@settings(deadline=None, max_examples=400)
@given(st.lists(PARTS, min_size=1, max_size=4).map(b".".join))
def test_nothing_is_good_but_what_was_signed(credential):
    verdict = verdict_of(credential)
    assert isinstance(verdict, Refused) != (credential == GOOD)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.sampled_from([*CLAIMS, "nbf", "tier", "models"]), JSON))
def test_no_claims_break_it(changes):
    payload = json.dumps({**CLAIMS, **changes}).encode()
    jws = Jws("HS256", "hs", b"", payload, hmac.digest(SECRET, b"", "sha256"))
    assert isinstance(judge(jws, KEYS["hs"], RULES, NOW), Granted | Refused)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_changed_byte_is_noticed(place, byte):
    changed = GOOD[:place] + bytes([byte]) + GOOD[place + 1 :]
    assert (reason(changed) == "") == (changed == GOOD)
