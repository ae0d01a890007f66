"""API keys are found by their hash, end when they should, and a wrong file says where it is wrong."""

from __future__ import annotations

import hashlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayd.auth.base import Granted, Refused, Tenant
from relayd.auth.keys import EntryError, entries_of, read_end, read_entry, read_keys
from relayd.readers import SettingError
from tests.auth.stage import NOW, authenticator, write

KEY = b"rk-0123456789abcdefghij"
HASH = hashlib.sha256(KEY).hexdigest()
ENTRY = f"- {{sha256: {HASH}, tenant: a}}\n"
OTHER = hashlib.sha256(b"other").hexdigest()


def keys(path, text: str):
    """Return the keys of a file with this text."""
    return read_keys(write(path / "keys.yaml", text))


def test_says_whose_key_it_is(tmp_path):
    found = keys(tmp_path, f"- {{sha256: {HASH}, tenant: alice, tier: gold, models: [m, n/o]}}").find(
        KEY, NOW
    )
    assert found.tenant == Tenant("alice", "gold", frozenset({"m", "n/o"}))


def test_tier_models_and_end_need_not_be_said(tmp_path):
    found = keys(tmp_path, f"- sha256: {HASH.upper()}\n  tenant: 'Alice & Bob'").find(KEY, 1e18)
    assert found.tenant == Tenant("Alice & Bob", "default", None)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "[]"])
def test_no_keys_are_no_error_but_worth_a_word(tmp_path, text):
    found = keys(tmp_path, text)
    assert found.find(KEY, NOW) == Refused("unknown_key")
    (remark,) = found.remarks
    assert str(remark) == (
        f"auth.keys: {tmp_path}/keys.yaml: there is no key in it: nobody can use a key; "
        "relayd token hash-key --new --tenant NAME writes an entry"
    )


@pytest.mark.parametrize("other", [b"", KEY[:-1], KEY + b"x", KEY.upper(), HASH.encode(), b"\xff"])
def test_only_the_whole_key_is_the_key(tmp_path, other):
    assert keys(tmp_path, f"- {{sha256: {HASH}, tenant: a}}").find(other, NOW) == Refused("unknown_key")


@pytest.mark.parametrize(
    ("expires", "end"),
    [
        ("2027-01-15", 1799971200),
        ('"2027-01-15"', 1799971200),
        ("2027-01-15T08:00:00Z", 1800000000),
        ("2027-01-15t10:00:00+02:00", 1800000000),
        ("2027-01-15 08:00:00.5Z", 1800000000.5),
    ],
)
def test_a_key_ends(tmp_path, expires, end):
    found = keys(tmp_path, f"- {{sha256: {HASH}, tenant: a, expires: {expires}}}")
    assert isinstance(found.find(KEY, end - 0.001), Granted)
    assert found.find(KEY, end) == Refused("key_expired")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "never",
        "2027-13-01",
        "2027-02-30",
        "27-01-15",
        "2027-01-15T08:00:00",
        "2027-01-15T25:00:00Z",
        "1800000000",
        "\uff12027-01-15",
    ],
)
def test_what_is_no_end(text):
    with pytest.raises(SettingError, match="a day, such as 2027-01-31"):
        read_end(text)


WRONG = [
    ("a table", "tenant: alice", "is not a list"),
    ("a text", "alice", "is not a list"),
    ("not YAML", "- {sha256: [", ":1:"),
    ("a tab", "-\tsha256: x\n\ttenant: a", ":1:2: a tab"),
    ("NUL", "- a\0b", "characters that YAML"),
    ("deep", "[" * 5000, "nesting"),
    ("an entry is a text", "- alice", ":1:3: not an entry"),
    ("no hash", "- tenant: a", ":1:3: sha256 is missing"),
    ("no tenant", f"- sha256: {HASH}", ":1:3: tenant is missing"),
    ("hash too short", f"- sha256: {HASH[1:]}\n  tenant: a", ":1:11: sha256 has 64"),
    ("the key itself", "- sha256: rk-0123456789\n  tenant: a", ":1:11: sha256 has 64"),
    ("a table for a hash", "- sha256: {}\n  tenant: a", ":1:11: a single value"),
    ("unknown field", f"- sha256: {HASH}\n  tennant: a", ":2:3: there is no field 'tennant'; did you mean"),
    ("a list for a field", f"- sha256: {HASH}\n  ? [a]\n  : b", ":2:5: there is no field"),
    ("a field twice", f"- sha256: {HASH}\n  tenant: a\n  tenant: b", ":3:3: tenant is there twice"),
    ("empty tenant", f"- sha256: {HASH}\n  tenant:", ":2:10: a tenant is"),
    ("tenant that does not print", f'- sha256: {HASH}\n  tenant: "a\\nb"', ":2:11: a tenant is"),
    ("tier is no name", f"- sha256: {HASH}\n  tenant: a\n  tier: a b", ":3:9: 'a b' is not a name"),
    ("models is a text", f"- sha256: {HASH}\n  tenant: a\n  models: m", ":3:11: models is a list"),
    ("models is empty", f"- sha256: {HASH}\n  tenant: a\n  models: []", ":3:11: models is a list"),
    ("a model is a table", f"- sha256: {HASH}\n  tenant: a\n  models: [{{}}]", ":3:12: a single value"),
    ("expires is no day", f"- sha256: {HASH}\n  tenant: a\n  expires: soon", ":3:12: expires is a day"),
    ("one hash twice", f"- {{sha256: {HASH}, tenant: a}}\n" * 2, ":2:3: the same sha256 as on line 1"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "text", "why"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_file_says_where(tmp_path, what, text, why):
    with pytest.raises(SettingError) as caught:
        keys(tmp_path, text)
    assert why in str(caught.value)
    assert str(caught.value).startswith("auth.keys: ")
    assert "0123456789" not in str(caught.value)


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    with pytest.raises(SettingError) as caught:
        keys(tmp_path, "- a\n" * 30 + f"- {{sha256: {HASH}, tenant: a}}")
    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert lines[-1].endswith("there are 10 more such entries")


def test_bad_utf_8(tmp_path):
    with pytest.raises(SettingError, match="not UTF-8"):
        read_keys(write(tmp_path / "keys.yaml", b"- \xff"))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path, mode):
    path = write(tmp_path / "keys.yaml", "[]", mode)
    with pytest.raises(SettingError, match="chmod go-w"):
        read_keys(path)


def test_a_file_that_everybody_can_read_is_worth_a_word(tmp_path):
    assert "chmod o-r" in str(read_keys(write(tmp_path / "keys.yaml", ENTRY, 0o644)).remarks[0])
    assert read_keys(write(tmp_path / "keys.yaml", ENTRY, 0o640)).remarks == []


def test_no_file(tmp_path):
    with pytest.raises(SettingError, match="no such file"):
        read_keys(str(tmp_path / "none.yaml"))
    with pytest.raises(SettingError, match="null byte"):
        read_keys("a\0b")


def test_what_is_no_plain_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path, "/dev/null"):
        with pytest.raises(SettingError, match=r"plain file|directory"):
            read_keys(str(path))


def test_a_file_that_is_too_large(tmp_path):
    with pytest.raises(SettingError, match="larger than 4096 KiB"):
        keys(tmp_path, "#" * (4 << 20) + "\n")


@settings(deadline=None)
@given(st.text(alphabet="-{}[]:,'\" \n&*!|>%@#?a0", max_size=40).map(str.encode) | st.binary(max_size=30))
def test_any_bytes_are_a_file_or_a_setting_error(data):
    try:
        for entry in entries_of("keys.yaml", data):
            read_entry(entry)
    except (SettingError, EntryError):
        pass


def test_who_is_told_of_the_warnings(tmp_path):
    assert "chmod" in authenticator(keys=write(tmp_path / "keys.yaml", "[]", 0o644)).warnings[0]
