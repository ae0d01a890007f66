"""Whose credential it is: where it stands, what is remembered of it, and what a reload changes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relayd.auth import authenticator as room
from relayd.auth.authenticator import LONGEST_KEPT
from relayd.auth.base import REASONS, Refused, Tenant
from relayd.auth.jwt import Key
from relayd.auth.material import is_wanted, read_material
from relayd.auth.strict import encode_base64url
from relayd.config import Auth, Jwt
from relayd.readers import Secret, SettingError
from relayd.records import Client
from tests.auth.stage import (
    ED25519,
    NOW,
    OTHER_RSA,
    P256,
    RSA,
    SECRET,
    authenticator,
    document,
    jwk,
    pem,
    reason_of,
    token,
    write,
)

KEY = b"rk-0123456789abcdefghij"
DOTTED = b"a.b.c"  # a key that looks like a token
TOKEN = token(exp=NOW + 600)


def entry(key: bytes, tenant: str, more: str = "") -> str:
    return f"- {{sha256: {hashlib.sha256(key).hexdigest()}, tenant: {tenant}{more}}}\n"


@pytest.fixture
def keys(tmp_path) -> str:
    text = (
        entry(KEY, "team") + entry(DOTTED, "dots") + entry(b"old", "old", ", expires: 2027-01-15T08:10:00Z")
    )
    return write(tmp_path / "keys.yaml", text)


@pytest.fixture
def jwt(tmp_path) -> Jwt:
    return Jwt(public_key=write(tmp_path / "key.pem", pem(RSA)), audience="relayd")


@pytest.fixture
def who(jwt, keys):
    return authenticator(jwt, keys)


def name_or_reason(verdict) -> str:
    return verdict.reason if isinstance(verdict, Refused) else verdict.name


PLACES = [
    (b"Bearer " + TOKEN, None, "alice"),
    (b"bearer " + TOKEN, None, "alice"),
    (b"BEARER    " + TOKEN, None, "alice"),
    (b"Bearer " + KEY, None, "team"),
    (b"Bearer " + DOTTED, None, "dots"),
    (None, KEY, "team"),
    (None, TOKEN, "alice"),
    (None, DOTTED, "dots"),
    (b"Bearer " + KEY, TOKEN, "team"),  # Authorization decides
    (b"Bearer x", KEY, "unknown_key"),
    (b"", KEY, "bad_scheme"),
    (None, None, "missing"),
    (b"", None, "bad_scheme"),
    (b"Basic dTpw", None, "bad_scheme"),
    (b"Bearer", None, "bad_scheme"),
    (b"Bearer ", None, "malformed"),
    (b"Bearer" + TOKEN, None, "bad_scheme"),
    (b"Bearer\t" + TOKEN, None, "bad_scheme"),
    (b"Bearer \t" + TOKEN, None, "malformed"),
    (TOKEN, None, "bad_scheme"),
    (KEY, None, "bad_scheme"),
    (b"Bearer " + TOKEN + b" ", None, "malformed"),
    (b"Bearer " + TOKEN + b" " + TOKEN, None, "malformed"),
    (b"Bearer " + TOKEN + b", Bearer " + TOKEN, None, "malformed"),
    (b"Bearer " + TOKEN + b",", None, "malformed"),
    (b'Bearer "' + TOKEN + b'"', None, "malformed"),
    (b" Bearer " + TOKEN, None, "bad_scheme"),
    (b"Bearer " + TOKEN + b"\n", None, "malformed"),
    (b"Bearer " + TOKEN + b"\0", None, "malformed"),
    (b"Bearer \xff\xfe", None, "malformed"),
    (b"?access_token=" + TOKEN, None, "bad_scheme"),
    (None, b"Bearer " + KEY, "malformed"),
    (None, b"", "malformed"),
    (None, KEY + b" ", "malformed"),
    (None, b"\xff", "malformed"),
    (b"Bearer " + b"x" * 8193, None, "too_long"),
    (b"Bearer " + b"x" * 80_000, None, "too_long"),
    (b"Bearer " + b" " * 60 + b"x", None, "unknown_key"),
    (b"Bearer " + b" " * 9000 + KEY, None, "too_long"),
    (None, b"x" * 8193, "too_long"),
    (None, b"x" * 80_000, "too_long"),
    (b"Bearer " + KEY[:-1], None, "unknown_key"),
    (b"Bearer a.b", None, "unknown_key"),
    (b"Bearer a.b.d", None, "bad_encoding"),
]


@pytest.mark.parametrize(("authorization", "api_key", "outcome"), PLACES)
def test_where_a_credential_stands(who, authorization, api_key, outcome):
    for _ in range(2):
        assert name_or_reason(who.check(authorization, api_key, NOW)) == outcome


def test_only_tokens(jwt):
    who = authenticator(jwt)
    assert reason_of(who, TOKEN) == ""
    assert reason_of(who, KEY) == "malformed"


def test_only_keys(keys):
    who = authenticator(keys=keys)
    assert reason_of(who, KEY) == ""
    assert reason_of(who, TOKEN) == "unknown_key"


def test_with_nothing_configured_nobody_is_let_in():
    who = authenticator()
    assert not is_wanted(Auth())
    for credential in (TOKEN, KEY, b"x"):
        assert reason_of(who, credential) == "unknown_key"


def test_what_is_wanted(jwt, keys):
    assert is_wanted(Auth(jwt=jwt))
    assert is_wanted(Auth(keys=keys))
    assert is_wanted(Auth(jwt=Jwt(algorithms=("HS256",), secret=Secret("x" * 32))))


# --- what is remembered -----------------------------------------------------------------------------


@pytest.fixture
def signatures(monkeypatch) -> list[bytes]:
    """Every signature that is checked."""
    checked = []
    real = Key.has_signed

    def seen(self, message, signature):
        checked.append(signature)
        return real(self, message, signature)

    monkeypatch.setattr(Key, "has_signed", seen)
    return checked


def test_a_signature_is_checked_once(who, signatures):
    for _ in range(5):
        assert reason_of(who, TOKEN) == ""
    assert len(signatures) == 1
    assert (who.hits, who.misses, who.remembered) == (4, 1, 1)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.integers(0, len(PLACES)), min_size=2, max_size=12))
@example(steps=[3, 3, len(PLACES), 3])
@example(steps=[5, PLACES.index((KEY, None, "bad_scheme")), 5])
def test_a_connection_that_was_heard_before_is_answered_like_a_new_one(steps):
    """Whatever came on it, in either header: what a connection keeps saves hashing, and says nothing."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        text = entry(KEY, "team") + entry(DOTTED, "dots")
        jwt = Jwt(public_key=write(path / "key.pem", pem(RSA)), audience="relayd")
        who = authenticator(jwt, write(path / "keys.yaml", text))
        kept = Client("192.0.2.1")
        for step in steps:
            if step == len(PLACES):  # the key of "team" is somebody else's from now on
                (path / "keys.yaml").write_text(text.replace("team", "others"))
                who.adopt(read_material(Auth(jwt=jwt, keys=str(path / "keys.yaml"))))
                continue
            authorization, api_key, _ = PLACES[step]
            said = name_or_reason(who.check(authorization, api_key, NOW, kept))
            assert said == name_or_reason(who.check(authorization, api_key, NOW))


def test_a_connection_keeps_no_long_credential(who):
    client = Client("192.0.2.1")
    long = token(more="x" * LONGEST_KEPT)
    assert name_or_reason(who.check(b"Bearer " + long, None, NOW, client)) == "alice"
    assert client.credential is None
    who.check(b"Bearer " + KEY, None, NOW, client)
    assert client.credential == b"Bearer " + KEY


def test_what_is_remembered_ends(who):
    assert reason_of(who, TOKEN, NOW) == ""
    assert reason_of(who, TOKEN, NOW + 629.9) == ""
    assert reason_of(who, TOKEN, NOW + 630) == "expired"
    assert who.remembered == 0
    assert reason_of(who, TOKEN, NOW) == ""  # a clock that was set back


def test_a_key_ends_although_it_is_remembered(who):
    assert reason_of(who, b"old", NOW + 599) == ""
    assert reason_of(who, b"old", NOW + 600) == "key_expired"


@pytest.mark.parametrize("step", [-3600, 3600, -NOW, 10**12])
def test_a_clock_that_jumps_breaks_nothing(who, step):
    reason_of(who, TOKEN)
    assert reason_of(who, TOKEN, NOW + step) in ("", "expired", "too_far", "not_yet_valid")
    assert reason_of(who, TOKEN) == ""


def test_refusals_are_not_remembered(who, signatures):
    bad = token(key=OTHER_RSA)
    for _ in range(3):
        assert reason_of(who, bad) == "bad_signature"
    assert who.remembered == 0
    assert len(signatures) == 3


def test_the_whole_credential_counts(who):
    """Tokens that begin alike are not alike (an attack on others that remembered by the first bytes)."""
    assert reason_of(who, TOKEN) == ""
    assert reason_of(who, TOKEN[:-2] + b"AA") in ("bad_signature", "bad_encoding")
    head, _, signature = TOKEN.rpartition(b".")
    payload = token(sub="root").split(b".")[1]
    assert reason_of(who, b".".join([head.split(b".")[0], payload, signature])) == "bad_signature"


def test_a_header_is_not_the_other_header(who):
    """`Bearer x` may be a key, too: it is not good in the other header because it was good in this one."""
    value = b"Bearer " + KEY
    assert name_or_reason(who.check(value, None, NOW)) == "team"
    assert name_or_reason(who.check(None, value, NOW)) == "malformed"


def test_only_so_many_are_remembered(who, monkeypatch, signatures):
    monkeypatch.setattr(room, "MOST_REMEMBERED", 3)
    tokens = [token(sub=f"t{number}") for number in range(5)]
    for credential in tokens:
        assert reason_of(who, credential) == ""
        assert who.remembered <= 3
    signatures.clear()
    assert reason_of(who, tokens[4]) == ""
    assert signatures == []
    assert reason_of(who, tokens[0]) == ""
    assert len(signatures) == 1


# --- reload -----------------------------------------------------------------------------------------


def test_a_reload_reads_everything_again(who, jwt, keys, tmp_path):
    assert reason_of(who, KEY) == ""
    assert reason_of(who, TOKEN) == ""
    write(tmp_path / "keys.yaml", entry(b"another", "team"))
    write(tmp_path / "key.pem", pem(OTHER_RSA))
    assert reason_of(who, KEY) == ""  # not before it is told to
    who.adopt(read_material(Auth(jwt=jwt, keys=keys)))
    assert reason_of(who, KEY) == "unknown_key"
    assert reason_of(who, b"another") == ""
    assert reason_of(who, TOKEN) == "bad_signature"
    assert reason_of(who, token(key=OTHER_RSA)) == ""


def test_a_reload_that_fails_changes_nothing(who, jwt, keys, tmp_path):
    write(tmp_path / "keys.yaml", "- broken")
    write(tmp_path / "key.pem", pem(OTHER_RSA))
    with pytest.raises(SettingError):
        who.adopt(read_material(Auth(jwt=jwt, keys=keys)))
    assert reason_of(who, KEY) == ""
    assert reason_of(who, TOKEN) == ""
    assert reason_of(who, token(key=OTHER_RSA)) == "bad_signature"


def test_a_reload_tells_its_warnings(who, jwt, keys):
    Path(keys).chmod(0o644)
    who.adopt(read_material(Auth(jwt=jwt, keys=keys)))
    assert "chmod o-r" in who.warnings[0]


# --- keys from files --------------------------------------------------------------------------------


def settings_with(tmp_path, **parts) -> Jwt:
    """Return settings whose files are there: a value that is bytes is a file's content."""
    for name, value in parts.items():
        if isinstance(value, bytes):
            parts[name] = write(tmp_path / name, value)
        elif name == "secret":
            parts[name] = Secret(value)
    return Jwt(**parts)


HEX = "hex:" + SECRET.hex()


@pytest.mark.parametrize("key", [RSA, P256, ED25519])
@pytest.mark.parametrize("kid", [..., "a", "whatever"])
def test_a_pem_key_is_alone_and_needs_no_name(tmp_path, key, kid):
    algorithm = jwk(key)["alg"]
    jwt = settings_with(tmp_path, algorithms=(algorithm,), public_key=pem(key), audience="relayd")
    assert reason_of(authenticator(jwt), token(key=key, algorithm=algorithm, header={"kid": kid})) == ""


def test_a_set_of_one_key_needs_no_kid(tmp_path):
    who = authenticator(settings_with(tmp_path, jwks=document(jwk(RSA))))
    assert reason_of(who, token(header={"kid": ...})) == ""
    assert reason_of(who, token(header={"kid": "b"})) == "unknown_kid"


def test_a_set_of_several_keys_needs_one(tmp_path):
    who = authenticator(settings_with(tmp_path, jwks=document(jwk(RSA), jwk(RSA, "enc", use="enc"))))
    assert reason_of(who, token()) == ""
    assert reason_of(who, token(header={"kid": ...})) == "no_kid"


def test_a_secret_beside_a_set(tmp_path):
    jwt = settings_with(
        tmp_path, algorithms=("RS256", "HS256"), jwks=document(jwk(RSA)), secret=HEX, secret_kid="hs"
    )
    who = authenticator(jwt)
    by_secret = {"key": SECRET, "algorithm": "HS256"}
    assert reason_of(who, token()) == ""
    assert reason_of(who, token(**by_secret, header={"kid": "hs"})) == ""
    assert reason_of(who, token(**by_secret, header={"kid": "a"})) == "bad_algorithm"
    assert reason_of(who, token(**by_secret, header={"kid": ...})) == "no_kid"
    assert reason_of(who, token(header={"kid": ...})) == "no_kid"


def test_a_secret_alone(tmp_path):
    by_secret = {"key": SECRET, "algorithm": "HS256"}
    who = authenticator(settings_with(tmp_path, algorithms=("HS256",), secret=HEX))
    assert reason_of(who, token(**by_secret)) == ""
    who = authenticator(settings_with(tmp_path, algorithms=("HS256",), secret=HEX, secret_kid="hs"))
    assert reason_of(who, token(**by_secret, header={"kid": ...})) == ""
    assert reason_of(who, token(**by_secret)) == "unknown_kid"


CONTRADICTIONS = [
    ({"issuer": "x"}, "no keys to check tokens with"),
    ({"jwks": document(jwk(RSA)), "public_key": pem(RSA)}, "one key alone"),
    ({"public_key": pem(RSA), "secret": HEX, "algorithms": ("RS256", "HS256")}, "one key alone"),
    ({"secret": HEX}, "it is for HS256"),
    ({"jwks": document(jwk(RSA)), "algorithms": ("RS256", "HS256")}, "HS256 needs a secret"),
    ({"jwks": document(jwk(RSA)), "algorithms": ()}, "no signature is accepted"),
    (
        {"jwks": document(jwk(RSA)), "secret": HEX, "algorithms": ("HS256",), "secret_kid": "hs"},
        "it is for algorithms with public keys",
    ),
    ({"jwks": document(jwk(RSA)), "secret": HEX, "algorithms": ("RS256", "HS256")}, "needs a name"),
    ({"jwks": document(jwk(RSA)), "secret_kid": "hs"}, "no secret that it names"),
    ({"jwks": document(jwk(RSA)), "tenant_claim": ""}, "nobody could be told"),
    ({"secret": "short", "algorithms": ("HS256",)}, "too short"),
    ({"jwks": "http://id.test/jwks"}, "use https://"),
    ({"jwks": "http://169.254.169.254/keys"}, "use https://"),
    ({"jwks": "https://user:pass@id.test/"}, "before the @"),
    ({"jwks": "file:///etc/keys"}, "not a URL"),
    ({"jwks": "https://"}, "not a URL"),
    ({"jwks": "https://[::1/"}, "not a URL"),
    ({"jwks": "https://id.test:99999/"}, "not a URL"),
    ({"jwks": "/no/such/file"}, "no such file"),
    ({"jwks": b"{}"}, "no JWKS"),
    ({"jwks": document(jwk(RSA, use="enc"))}, "no key that can be used"),
    ({"public_key": b"x"}, "no PEM"),
    ({"public_key": pem(P256)}, "does not list"),
]


@pytest.mark.parametrize(("parts", "why"), CONTRADICTIONS, ids=[row[1] for row in CONTRADICTIONS])
def test_settings_that_cannot_be_meant_stop_the_start(tmp_path, parts, why):
    with pytest.raises(SettingError, match=why) as caught:
        authenticator(settings_with(tmp_path, **parts))
    assert str(caught.value).startswith("auth.jwt")
    assert "pass@" not in str(caught.value)
    assert SECRET.hex() not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://id.test/jwks?x=1", "http://127.0.0.1:8000/jwks", "http://localhost/", "http://[::1]:80/"]
)
def test_urls_that_may_have_keys(url):
    who = authenticator(Jwt(jwks=url))
    assert who.source.url == url
    assert not who.ready


def test_a_file_that_others_can_write_has_no_keys_for_us(tmp_path):
    path = write(tmp_path / "jwks.json", document(jwk(RSA)), 0o666)
    with pytest.raises(SettingError, match="chmod go-w"):
        authenticator(Jwt(jwks=path))


def test_says_what_an_operator_should_know(tmp_path):
    jwt = settings_with(tmp_path, jwks=document(jwk(RSA), jwk(P256, "b")))
    said = "\n".join(authenticator(jwt).warnings)
    assert "no audience is set" in said
    assert "key 2 of 2 is left out" in said


# --- whatever comes ---------------------------------------------------------------------------------


def test_every_refusal_is_counted(who):
    for credential in (b"x", b"x", b"a.b.d"):
        reason_of(who, credential)
    who.check(None, None, NOW)
    counted = {reason: count for reason, count in who.refused.items() if count}
    assert counted == {"unknown_key": 2, "bad_encoding": 1, "missing": 1}
    assert set(who.refused) == set(REASONS)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fuzzed")
    keys = write(directory / "keys.yaml", entry(KEY, "team"))
    jwks = write(directory / "jwks.json", document(jwk(RSA), jwk(P256, "ec"), jwk(ED25519, "ed")))
    return authenticator(Jwt(algorithms=("RS256", "ES256", "EdDSA"), jwks=jwks), keys)


HEADERS = st.one_of(
    st.none(),
    st.binary(max_size=80),
    st.binary(max_size=80).map(lambda data: b"Bearer " + data),
    st.tuples(
        st.dictionaries(
            st.sampled_from(["alg", "kid", "typ", "crit"]),
            st.none() | st.integers() | st.sampled_from(["RS256", "ES256", "EdDSA", "a", "ec", "ed", "JWT"])
            | st.lists(st.text(max_size=2), max_size=2),
        ).map(lambda header: json.dumps(header).encode()),
        st.binary(max_size=40),
        st.binary(max_size=100),
    ).map(lambda parts: b"Bearer " + b".".join(map(encode_base64url, parts))),
)  # fmt: skip


@settings(deadline=None, max_examples=500)
@given(HEADERS, HEADERS, st.floats(allow_nan=True) | st.integers())
@example(b"Bearer " + TOKEN, None, float("nan"))
@example(b"Bearer " + TOKEN, None, float("inf"))
@example(b"Bearer " + TOKEN, None, float("-inf"))
def test_nothing_that_comes_is_an_exception(fuzzed, authorization, api_key, now):
    verdict = fuzzed.check(authorization, api_key, now)
    if isinstance(verdict, Tenant):
        assert KEY in (authorization or api_key or b"") or TOKEN in (authorization or b"")
    else:
        assert verdict.reason in REASONS


def test_the_page_has_every_reason():
    page = (Path(__file__).parents[2] / "docs" / "auth.md").read_text()
    for reason, meaning in REASONS.items():
        assert f"| `{reason}` | {meaning} |" in page


def test_knows_what_was_found_good(who):
    header = b"Bearer " + TOKEN
    assert not who.knows(header, None, NOW)
    assert not who.knows(None, None, NOW)
    who.check(header, None, NOW)
    who.check(b"Bearer x", None, NOW)
    assert who.knows(header, None, NOW)
    assert not who.knows(None, header, NOW)
    assert not who.knows(header, None, NOW + 630)
    assert not who.knows(b"Bearer x", None, NOW)
    assert not who.knows(b"x" * 80_000, None, NOW)
