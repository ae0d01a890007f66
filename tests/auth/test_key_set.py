"""Of published keys those for signatures are used, and a dishonest document is refused whole."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from relayd.auth.key_set import KeySetError, Unusable, read_key_set, read_public_key, read_secret_key
from relayd.auth.strict import encode_base64url
from relayd.readers import Secret, SettingError
from tests.auth.stage import ED25519, OTHER_RSA, P256, RSA, document, jwk, pem, private_pem

ALL = ("RS256", "ES256", "EdDSA")
WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)
GOOD = jwk(RSA, "good")


def number(value: int) -> str:
    """Return a number as JWK has it."""
    return encode_base64url(value.to_bytes((value.bit_length() + 7) // 8 or 1)).decode()


def test_each_kind_of_key_is_for_its_algorithm():
    keys = read_key_set(document(jwk(RSA, "r"), jwk(P256, "e"), jwk(ED25519, "o")), ALL)
    assert {kid: key.algorithm for kid, key in keys.by_kid.items()} == {
        "r": "RS256",
        "e": "ES256",
        "o": "EdDSA",
    }
    assert keys.only is None
    assert keys.warnings == []


@pytest.mark.parametrize("key", [RSA, P256, ED25519])
def test_alg_and_use_need_not_be_said(key):
    keys = read_key_set(document(jwk(key, alg=..., use=...)), ALL)
    assert list(keys.by_kid) == ["a"]
    assert keys.only is keys.by_kid["a"]


def test_one_key_needs_no_kid():
    keys = read_key_set(document(jwk(RSA, None)), ALL)
    assert keys.by_kid == {}
    assert keys.only is not None


NOT_ALONE = read_key_set(document(jwk(RSA, "r"), jwk(WEAK, "weak")), ALL)


def test_a_key_is_not_alone_because_the_others_cannot_be_used():
    assert NOT_ALONE.only is None


LEFT_OUT = [
    ("weak", jwk(WEAK), "1024 bits"),
    ("for encryption", jwk(RSA, use="enc"), "use"),
    ("use is no text", jwk(RSA, use=["sig"]), "use"),
    ("for signing only", jwk(RSA, key_ops=["sign"]), "key_ops"),
    ("key_ops is no list", jwk(RSA, key_ops="verify"), "key_ops"),
    ("a private key", jwk(RSA, d="AQAB"), "private"),
    ("for another algorithm", jwk(RSA, alg="PS256"), "alg"),
    ("alg of another kind", jwk(RSA, alg="ES256"), "alg"),
    ("alg is no text", jwk(RSA, alg=256), "alg"),
    ("HS256 said of an RSA key", jwk(RSA, alg="HS256"), "alg"),
    ("another kind", jwk(RSA, kty="nonsense"), "kind"),
    ("no kind", jwk(RSA, kty=...), "kind"),
    ("kind is no text", jwk(RSA, kty=["RSA"]), "kind"),
    ("another curve", jwk(P256, crv="P-384"), "kind"),
    ("not on the curve", jwk(P256, x=number(5)), "read"),
    ("x too short", jwk(ED25519, x="AQAB"), "read"),
    ("n missing", jwk(RSA, n=...), "n is missing"),
    ("n is a number", jwk(RSA, n=5), "n is missing"),
    ("n padded", jwk(RSA, n=jwk(RSA)["n"] + "="), "base64url"),
    ("n not ASCII", jwk(RSA, n="\u00e9"), "n is missing"),
    ("n even", jwk(RSA, n=number(RSA.public_key().public_numbers().n - 1)), "even"),
    ("n too long", jwk(RSA, n=number((1 << 9000) + 1)), "bits"),
    ("huge exponent", jwk(RSA, e=number((1 << 64) + 1)), "exponent"),
    ("kid is a number", jwk(RSA, 1), "kid"),
    ("kid is empty", jwk(RSA, ""), "kid"),
    ("kid is long", jwk(RSA, "k" * 256), "kid"),
    ("no kid among others", jwk(RSA, None), "no kid"),
    ("P-384", jwk(ec.generate_private_key(ec.SECP384R1()), alg=...), "kind"),
    ("Ed448", jwk(ed448.Ed448PrivateKey.generate(), alg=...), "kind"),
]


@pytest.mark.parametrize(("what", "entry", "why"), LEFT_OUT, ids=[row[0] for row in LEFT_OUT])
def test_a_key_that_cannot_be_used_is_left_out(what, entry, why):
    keys = read_key_set(document(entry, GOOD), ALL)
    assert list(keys.by_kid) == ["good"]
    (warning,) = keys.warnings
    assert warning.startswith("key 1 of 2 is left out: it ")
    assert why in warning


@pytest.mark.parametrize(("what", "entry", "why"), LEFT_OUT[:12], ids=[row[0] for row in LEFT_OUT[:12]])
def test_nothing_but_such_keys_is_no_set(what, entry, why):
    with pytest.raises(KeySetError, match="no key that can be used"):
        read_key_set(document(entry), ALL)


def test_only_what_the_settings_list_is_used():
    keys = read_key_set(document(jwk(RSA, "r"), jwk(P256, "e")), ("ES256",))
    assert list(keys.by_kid) == ["e"]


REFUSED = [
    ("empty", b"", "no JWKS"),
    ("no JSON", b"<html>", "no JWKS"),
    ("a list", b"[]", "no JWKS"),
    ("no keys", b"{}", "not a list"),
    ("keys is an object", b'{"keys":{}}', "not a list"),
    ("a key is a text", b'{"keys":["x"]}', "not a list"),
    ("no key in it", document(), "no key that can be used"),
    ("keys twice", b'{"keys":[],"keys":[]}', "twice"),
    ("too many", document(*[jwk(RSA, str(kid)) for kid in range(101)]), "more than 100"),
    ("too large", document(GOOD)[:-1] + b" " * (256 << 10) + b"}", "256 KiB"),
    ("one kid twice", document(GOOD, jwk(OTHER_RSA, "good")), "same kid"),
    ("one kid twice, one unusable", document(GOOD, jwk(OTHER_RSA, "good", use="enc")), "same kid"),
    ("a secret", document(GOOD, {"kty": "oct", "kid": "s", "k": "c2VjcmV0"}), "secret"),
    ("a secret in disguise", document(GOOD, jwk(RSA, k="c2VjcmV0")), "secret"),
    ("e is 1", document(GOOD, jwk(RSA, e=number(1))), "exponent 1"),
    ("e is 0", document(GOOD, jwk(RSA, e=number(0))), "exponent 0"),
    ("e is 2", document(GOOD, jwk(RSA, e=number(2))), "exponent 2"),
    ("e is even", document(GOOD, jwk(RSA, e=number(65536))), "even"),
    ("deep", b'{"keys":' + b"[" * 5000 + b"]" * 5000 + b"}", "deeply"),
    ("bad UTF-8", b'{"keys":["\xff"]}', "no JWKS"),
]


@pytest.mark.parametrize(("what", "body", "why"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_document_that_no_honest_issuer_publishes_is_refused(what, body, why):
    with pytest.raises(KeySetError, match=why):
        read_key_set(body, ALL)


def test_a_hundred_keys_are_not_too_many():
    assert len(read_key_set(document(*[jwk(RSA, str(kid)) for kid in range(100)]), ALL).by_kid) == 100


VALUES = st.none() | st.integers() | st.text(max_size=8) | st.lists(st.text(max_size=4), max_size=2)


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from([jwk(RSA), jwk(P256), jwk(ED25519)]),
    st.dictionaries(
        st.sampled_from(["kty", "n", "e", "x", "y", "crv", "kid", "alg", "use", "key_ops"]), VALUES
    ),
)
def test_any_entry_is_a_key_or_is_not(entry, changes):
    try:
        read_key_set(json.dumps({"keys": [{**entry, **changes}]}).encode(), ALL)
    except KeySetError:
        pass


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_set_or_are_not(body):
    with pytest.raises(KeySetError):
        read_key_set(body, ALL)


# --- PEM and secrets --------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (P256, "ES256"), (ED25519, "EdDSA")])
def test_a_pem_file_has_a_key(key, algorithm):
    assert read_public_key(pem(key), ALL).algorithm == algorithm


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no PEM"),
        (b"\xff" * 50, "no PEM"),
        (private_pem(RSA), "private key"),
        (pem(WEAK), "1024 bits"),
        (pem(ec.generate_private_key(ec.SECP384R1())), "none of"),
        (pem(ed448.Ed448PrivateKey.generate()), "none of"),
        (pem(RSA)[:100], "no PEM"),
    ],
)
def test_a_pem_file_that_cannot_be_used(data, why):
    with pytest.raises(Unusable, match=why):
        read_public_key(data, ALL)


def test_a_pem_key_must_be_for_a_listed_algorithm():
    with pytest.raises(Unusable, match="does not list"):
        read_public_key(pem(ed25519.Ed25519PrivateKey.generate()), ("RS256",))


SECRET = bytes(range(200, 232))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("x" * 32, b"x" * 32),
        ("hex:" + SECRET.hex(), SECRET),
        ("hex:" + SECRET.hex().upper(), SECRET),
        ("base64:" + encode_base64url(SECRET).decode(), SECRET),
        ("base64:yMnKy8zNzs/Q0dLT1NXW19jZ2tvc3d7f4OHi4+Tl5uc=", SECRET),
        ("other:" + "x" * 32, b"other:" + b"x" * 32),
    ],
)
def test_a_secret_is_text_or_bytes(text, key):
    assert read_secret_key("auth.jwt.secret", Secret(text)).material == key


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "too short"),
        ("x" * 31, "too short"),
        ("hex:" + "ab" * 31, "too short"),
        ("hex:" + "xy" * 32, "after hex:"),
        ("base64:" + "!" * 64, "after base64:"),
        (pem(RSA).decode(), "another algorithm"),
        (json.dumps(jwk(RSA)), "another algorithm"),
    ],
)
def test_a_secret_that_cannot_be_used_is_not_shown(text, why):
    with pytest.raises(SettingError, match=why) as caught:
        read_secret_key("auth.jwt.secret", Secret(text))
    assert not text or text[8:] not in str(caught.value)
