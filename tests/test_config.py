"""Settings are read as a person writes them, and a wrong one is answered with what to write instead."""

from __future__ import annotations

from typing import Annotated, get_args, get_origin

import msgspec
import pytest

from relayd.config import (
    SettingError,
    Settings,
    apply,
    every_setting,
    find_path,
    read_address,
    read_choice,
    read_count,
    read_duration,
    read_networks,
    read_share,
    read_size,
    read_switch,
    read_text,
    split_address,
)

GOOD = [
    (read_duration, "20s", 20.0),
    (read_duration, "1.5m", 90.0),
    (read_duration, "250ms", 0.25),
    (read_duration, "2h", 7200.0),
    (read_duration, "1d", 86400.0),
    (read_duration, "off", 0.0),
    (read_duration, "0", 0.0),
    (read_duration, "0s", 0.0),
    (read_size, "32MiB", 32 << 20),
    (read_size, "64KiB", 64 << 10),
    (read_size, "1GiB", 1 << 30),
    (read_size, "10kB", 10_000),
    (read_size, "1MB", 10**6),
    (read_size, "2GB", 2 * 10**9),
    (read_size, "7", 7),
    (read_size, "7B", 7),
    (read_size, "7 B", 7),
    (read_share, "20%", 0.2),
    (read_share, "0%", 0.0),
    (read_share, "100%", 1.0),
    (read_share, "12.5%", 0.125),
    (read_count, "0", 0),
    (read_count, "12", 12),
    (read_count, "999999999", 999_999_999),
    (read_switch, "on", True),
    (read_switch, "TRUE", True),
    (read_switch, "yes", True),
    (read_switch, "off", False),
    (read_switch, "False", False),
    (read_switch, "no", False),
    (read_address, "127.0.0.1:8080", "127.0.0.1:8080"),
    (read_address, "[::1]:80", "[::1]:80"),
    (read_address, ":8080", ":8080"),
    (read_address, "localhost:0", "localhost:0"),
    (read_address, "off", "off"),
    (read_networks, "10.0.0.0/8", ("10.0.0.0/8",)),
    (read_networks, "", ()),
    (read_networks, "10.0.0.0/8, ::1 ,", ("10.0.0.0/8", "::1")),
    (read_text, " as it is ", " as it is "),
    (read_text, "", ""),
    (read_choice("a", "b"), "b", "b"),
]
BAD = [
    (read_duration, ["20", "s", "-1s", "1 s", "1e3s", "20sec", "", "on", "1.s", "٣s"], "not a duration"),
    (read_size, ["32mib", "-1", "1.5MiB", "", "MiB", "1TiB", "off", "1 MiB B"], "not a size"),
    (read_share, ["20", "101%", "-1%", "%", "", "0.2", "100.1%"], "not a share"),
    (read_count, ["-1", "1.5", "", "many", "1234567890", "1e3", " 1", "٣"], "not a whole number"),
    (read_switch, ["", "1", "maybe", "onn"], "neither on nor off"),
    (
        read_address,
        ["", "8080", "a:b", "127.0.0.1", "::1:80", "a:99999", "http://a:80", "a:80/", "a:80:80", "[::1]"],
        "not an address",
    ),
    (read_networks, ["10.0.0.0/33", "a", "10.0.0.1/8", "10.0.0.0/8,nope"], "not an address range"),
    (read_choice("openai", "vllm"), ["", "vlm", "VLLM"], "not one of openai, vllm"),
]


@pytest.mark.parametrize(("reader", "text", "value"), GOOD)
def test_reads(reader, text, value):
    assert reader(text) == value
    assert type(reader(text)) is type(value)


@pytest.mark.parametrize(("reader", "texts", "message"), BAD)
def test_refuses_with_the_value_found(reader, texts, message):
    for text in texts:
        with pytest.raises(SettingError, match=message) as caught:
            reader(text)
        assert (
            "such as" in str(caught.value)
            or reader in (read_count, read_switch)
            or message.startswith("not one")
        )


def test_a_choice_that_is_nearly_right():
    with pytest.raises(SettingError, match="did you mean 'vllm'"):
        read_choice("openai", "vllm", "sglang")("vlm")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        (":80", ("0.0.0.0", 80)),
        ("host:0", ("host", 0)),
        ("host:65535", ("host", 65535)),
    ],
)
def test_an_address_has_two_parts(text, parts):
    assert split_address(text) == parts


# --- all of them --------------------------------------------------------------------------------------

SETTINGS = list(every_setting())


def meta_of(hint) -> msgspec.Meta:
    """Return what is declared of a setting."""
    return next(arg for arg in get_args(hint) if isinstance(arg, msgspec.Meta))


def value_at(settings: Settings, path: str):
    """Return the value of a setting by its path."""
    value = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(("path", "hint"), SETTINGS, ids=[path for path, _ in SETTINGS])
def test_every_setting_says_what_it_is(path, hint):
    assert get_origin(hint) is Annotated
    assert meta_of(hint).description
    assert callable(meta_of(hint).extra["read"])


def test_the_settings_of_the_design_are_there():
    paths = {path for path, _ in SETTINGS}
    timeouts = {
        f"resilience.timeouts.{name}" for name in ("connect", "first_token", "idle", "write", "total")
    }
    others = {
        "listen",
        "admin",
        "trusted_proxies",
        "max_body",
        "policy",
        "engine",
        "on_disconnect",
        "sse_keepalive",
        "drain_delay",
        "drain_timeout",
        "resilience.retry.attempts",
        "resilience.retry.budget",
    }
    assert timeouts | others <= paths


def test_defaults_are_those_of_the_design():
    settings = Settings()
    timeouts = settings.resilience.timeouts
    assert (timeouts.connect, timeouts.first_token, timeouts.idle) == (2, 600, 300)
    assert (timeouts.write, timeouts.total) == (60, 3600)
    assert settings.resilience.retry.budget == 0.2
    assert settings.resilience.breaker.consecutive == 5
    assert (settings.listen, settings.admin) == ("127.0.0.1:8080", "127.0.0.1:9901")
    assert (settings.on_disconnect, settings.engine) == ("cancel", "openai")


@pytest.mark.parametrize(("path", "hint"), SETTINGS, ids=[path for path, _ in SETTINGS])
def test_every_setting_can_be_set_by_its_path_and_nothing_else_changes(path, hint):
    texts = ["7s", "7%", "7", "7/min", "on", "off", "10.1.2.3:77", "10.0.0.0/8", "drain", "vllm", "some text"]
    before = Settings()
    read = meta_of(hint).extra["read"]
    for text in texts:
        try:
            value = read(text)
        except SettingError:
            continue
        if value == value_at(before, path):
            continue
        after = apply(before, f"{path}={text}")
        assert value_at(after, path) == value
        changed = [other for other, _ in SETTINGS if value_at(after, other) != value_at(before, other)]
        assert changed == [path]
        assert apply(before, f" {path} = {text} ") == after
        return
    pytest.fail(f"none of {texts} is a value of {path} other than its default")


@pytest.mark.parametrize(("path", "hint"), SETTINGS, ids=[path for path, _ in SETTINGS])
def test_a_wrong_value_names_its_setting(path, hint):
    if meta_of(hint).extra["read"] is read_text:
        assert value_at(apply(Settings(), f"{path}=!"), path) == "!"
        return
    with pytest.raises(SettingError) as caught:
        apply(Settings(), f"{path}=!?")
    assert str(caught.value).startswith(f"{path}: ")
    assert "!?" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("resilience.timeouts.idle", "resilience.timeouts.idle"),
        ("timeouts.idle", "resilience.timeouts.idle"),
        ("idle", "resilience.timeouts.idle"),
        ("first_token", "resilience.timeouts.first_token"),
        ("attempts", "resilience.retry.attempts"),
        ("policy", "policy"),
        ("keepalive", "front.keepalive"),
    ],
)
def test_an_unambiguous_tail_is_enough(key, path):
    assert find_path(key) == path


@pytest.mark.parametrize(
    "key", ["resilience", "timeouts", "le", "dle", "resilience.idle", "timeouts.", ".idle", "", "IDLE"]
)
def test_anything_else_names_nothing(key):
    with pytest.raises(SettingError, match="there is no setting"):
        find_path(key)


def test_a_key_that_is_nearly_right():
    with pytest.raises(SettingError, match="did you mean 'drain_timeout'"):
        find_path("drain_timeot")


def test_a_tail_of_two_settings_is_ambiguous(monkeypatch):
    paths = iter([("a.same", None), ("b.same", None)])
    monkeypatch.setattr("relayd.config.every_setting", lambda: paths)
    with pytest.raises(SettingError, match=r"'same' could be a\.same or b\.same"):
        find_path("same")


@pytest.mark.parametrize("text", ["", "policy", "resilience.timeouts.idle 3s"])
def test_an_assignment_has_an_equals_sign(text):
    with pytest.raises(SettingError, match="KEY=VALUE"):
        apply(Settings(), text)


def test_a_value_may_contain_an_equals_sign():
    assert apply(Settings(), "policy=a=b").policy == "a=b"


def test_settings_are_frozen_and_closed():
    with pytest.raises(AttributeError):
        Settings().listen = "x"
    with pytest.raises(TypeError):
        Settings(lisen="x")


def test_settings_that_were_given_stay():
    settings = apply(apply(Settings(), "idle=1s"), "connect=3s")
    assert (settings.resilience.timeouts.idle, settings.resilience.timeouts.connect) == (1.0, 3.0)
