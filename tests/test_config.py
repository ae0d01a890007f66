"""Settings are read as a person writes them, and a wrong one is answered with what to write instead."""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from relayd.config import Settings, apply, every_key, every_setting, find_path, how_written
from relayd.readers import (
    KINDS,
    QuotaOf,
    RateOf,
    Secret,
    SettingError,
    decode_secret,
    is_loopback,
    kind_of,
    quoted,
    read_address,
    read_choice,
    read_count,
    read_credential,
    read_duration,
    read_header_name,
    read_jwt_secret,
    read_key_source,
    read_mode,
    read_name,
    read_network,
    read_path,
    read_positive,
    read_prefix,
    read_quota,
    read_rate,
    read_share,
    read_sink,
    read_size,
    read_switch,
    read_text,
    read_worker_url,
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
    (read_address, "unix:/run/relayd.sock", "unix:/run/relayd.sock"),
    (read_network, "10.0.0.0/8", "10.0.0.0/8"),
    (read_network, "::1", "::1"),
    (read_positive, "1", 1),
    (read_rate, "100/s", RateOf(100, 1.0)),
    (read_rate, "600/min", RateOf(600, 60.0)),
    (read_rate, "200k/min", RateOf(200_000, 60.0)),
    (read_rate, "10M/day", RateOf(10_000_000, 86400.0)),
    (read_rate, "5/hour", RateOf(5, 3600.0)),
    (read_rate, "off", None),
    (read_quota, "10M/day", QuotaOf(10_000_000, "day")),
    (read_quota, "500k/h", QuotaOf(500_000, "hour")),
    (read_quota, "1G/month", QuotaOf(10**9, "month")),
    (read_quota, "7/d", QuotaOf(7, "day")),
    (read_quota, "off", None),
    (read_sink, "stdout", "stdout"),
    (read_sink, "file:/var/log/relayd.log", "file:/var/log/relayd.log"),
    (read_prefix, "/v2/", "/v2/"),
    (read_worker_url, "http://10.0.0.11:8000/", "http://10.0.0.11:8000"),
    (read_worker_url, "https://[::1]:8443", "https://[::1]:8443"),
    (read_mode, "0660", 0o660),
    (read_mode, "600", 0o600),
    (read_path, "/etc/relayd/a b.pem", "/etc/relayd/a b.pem"),
    (read_key_source, "keys.json", "keys.json"),
    (read_key_source, "https://id.example.com/jwks", "https://id.example.com/jwks"),
    (read_key_source, "https://id.example.com/jwks/", "https://id.example.com/jwks/"),
    (read_key_source, "https://id.example.com/keys?p=a@b", "https://id.example.com/keys?p=a@b"),
    (read_key_source, "http://127.0.0.1:8081/jwks", "http://127.0.0.1:8081/jwks"),
    (read_key_source, "http://[::1]:8081/jwks", "http://[::1]:8081/jwks"),
    (read_name, "org/llama-3.1:70b_x", "org/llama-3.1:70b_x"),
    (read_header_name, "X-Org", "x-org"),
    (read_credential, "sk-a b", Secret("sk-a b")),
    (read_jwt_secret, "x" * 32, Secret("x" * 32)),
    (read_jwt_secret, "hex:" + "0f" * 32, Secret("hex:" + "0f" * 32)),
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
    (read_address, ["a b:80", "10.0.0.256:80", "a_b!:80", "[1:2]:80", "[10.0.0.1]:80"], "is not an address"),
    (read_address, ["unix:", "unix:run/x", "unix:./x", "unix:@x"], "must begin with /: write unix:/PATH"),
    (read_address, ["unix:/run/"], "is a directory"),
    (read_address, ["unix:/" + "x" * 107], "is too long: .* 107 bytes"),
    (read_network, ["10.0.0.5/8"], "10.0.0.0/8: write 10.0.0.0/8, or 10.0.0.5 for that address alone"),
    (read_network, ["10.0.0.0/33", "a", "10.0.0.1/8", "", "10.0.0.0/8,nope"], "not an address range"),
    (read_positive, ["0", "000"], "would let nothing through"),
    (read_positive, ["", "-1"], "not a whole number"),
    (read_size, ["0", "0MiB"], "would let nothing through"),
    (read_rate, ["", "100", "0/s", "1/week", "1.5/s", "1G/s", "100 /s", "/s", "s"], "not a rate"),
    (read_quota, ["", "100", "0/day", "1/min", "1/s", "1/year", "1T/day"], "not a quota"),
    (read_sink, ["", "stderr", "file:", "/var/log/x"], "not a sink"),
    (read_prefix, ["", "v1", "*"], "not the beginning of a path"),
    (read_worker_url, ["", "h", "h:80", "ftp://h", "http://", "http:///x", "http://h:port"], "is not a URL"),
    (read_worker_url, ["http://h:0", "http://h:99999", "http://[::1", "http://[::1]x:1"], "is not a URL"),
    (read_worker_url, ["http://10.0.0.256:80", "http://a,b", "http://a..b", "http://h\n"], "is not a URL"),
    (read_worker_url, ["http://h:8000/v1", "https://h:8000/v1/"], "drop it, write https?://h:8000$"),
    (
        read_worker_url,
        ["http://h?x", "http://h/v1?x", "http://h#x"],
        "has more than a host and a port: write http://h$",
    ),
    (read_mode, ["", "66", "0o660", "0888", "rw-rw----", "01660", "-660"], "not a file's mode"),
    (read_path, ["http://h/x", "file:///x"], "not a file"),
    (read_key_source, ["http://h/jwks", "http://10.0.0.1/jwks"], "could send other keys"),
    (
        read_key_source,
        ["ftp://h/jwks", "https://", "https://[::1/", "https://h:99999/", "https://h/x#y"],
        "not a URL",
    ),
    (read_name, ["", "-a", "a b", "a" * 129, "ä", "a$"], "not a name"),
    (read_header_name, ["", "x org", "x:", "ä", "x\n"], "not the name of a header"),
    (read_header_name, ["Host", "content-length", "Connection"], "a header that relayd makes itself"),
    (read_credential, ["", " a", "a ", "a\r\nx: y", "ä", "\x00"], "cannot be sent in a header"),
    (read_jwt_secret, ["", "x" * 31, "hex:" + "0f" * 31, "base64:" + "YWJj"], "too short"),
    (read_jwt_secret, ["hex:0", "hex:xy" + "0" * 70], "after hex:"),
    (read_jwt_secret, ["base64:a", "base64:" + "#" * 50, "base64:ä"], "after base64:"),
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
        assert len(str(caught.value)) > len(message) + 5, "it says what to write instead"


SECRET = "hunter2-hunter2"


@pytest.mark.parametrize("reader", [read_credential, read_jwt_secret])
@pytest.mark.parametrize("around", ["{}", " {} ", "hex:{}", "base64:{}#", "{}\n", "ä{}"])
def test_a_message_about_a_secret_does_not_have_it(reader, around):
    said = ""
    try:
        said = str(reader(around.format(SECRET)))
    except SettingError as error:
        said = str(error)
    assert said
    assert SECRET not in said


@pytest.mark.parametrize("reader", [read_worker_url, read_key_source, read_path])
def test_a_message_about_a_url_does_not_have_the_password_in_it(reader):
    with pytest.raises(SettingError, match="before the @") as caught:
        reader(f"https://me:{SECRET}@host/x")
    assert SECRET not in str(caught.value)


def test_bytes_of_a_secret():
    assert decode_secret(Secret("hex:00ff")) == b"\x00\xff"
    assert decode_secret(Secret("base64:AP8=")) == decode_secret(Secret("base64:AP8")) == b"\x00\xff"
    assert decode_secret(Secret("base64:-_8")) == decode_secret(Secret("base64:+/8=")) == b"\xfb\xff"
    assert decode_secret(Secret("plain ä")) == "plain ä".encode()


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("[::1]", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil", "h", "")],
)
def test_what_only_this_machine_can_reach(host, is_local):
    assert is_loopback(host) is is_local


def test_a_quote_is_short_and_printable():
    assert quoted("a'b") == '"a\'b"'
    assert quoted("\x1b[31m\u202e") == r"'\x1b[31m\u202e'"
    assert len(quoted("x" * 10_000)) < 100


@pytest.mark.parametrize("reader", KINDS, ids=lambda reader: reader.__name__)
def test_what_is_said_of_a_reader_is_true(reader):
    kind = kind_of(reader)
    for example in kind.examples:
        if not kind.is_secret:
            reader(example)
            assert not kind.pattern or re.fullmatch(kind.pattern, example)


@pytest.mark.parametrize(("reader", "text", "value"), GOOD)
def test_a_pattern_has_what_its_reader_reads(reader, text, value):
    pattern = kind_of(reader).pattern
    if pattern and text == text.lower():
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(("reader", "texts", "message"), BAD)
def test_a_pattern_has_hardly_anything_else(reader, texts, message):
    pattern = kind_of(reader).pattern
    if pattern and message.startswith("not") and reader is not read_network:
        assert not [
            text
            for text in texts
            if re.fullmatch(pattern, text) and text not in ("101%", "100.1%", "a:99999")
        ]


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


def read_by(hint: Any, text: str) -> Any:
    """Return what a setting makes of a text on the command line."""
    written = how_written(hint)
    return (written["item"](text),) if "item" in written else written["read"](text)


def value_at(settings: Settings, path: str):
    """Return the value of a setting by its path."""
    value = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


ALL = list(every_key())


@pytest.mark.parametrize(("path", "hint"), ALL, ids=[path for path, _ in ALL])
def test_every_setting_says_what_it_is(path, hint):
    assert get_origin(hint) is Annotated
    assert meta_of(hint).description
    written = how_written(hint)
    assert set(written) in ({"read"}, {"item"}, {"table"}, {"table", "read"}, {"rows"})
    for how, reader in written.items():
        assert how == "rows" or kind_of(reader).words


def test_tables_and_rows_are_declared_to_their_ends():
    paths = [path for path, _ in ALL]
    assert len(set(paths)) == len(paths)
    assert {path for path, _ in SETTINGS} < set(paths)
    assert "limits.tiers.NAME.models.NAME.tokens" in paths
    assert "models.NAME.targets[].worker" in paths
    assert "workers.NAME.headers" in paths


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
    texts = [
        "7s",
        "7%",
        "7",
        "0600",
        "7/min",
        "off",
        "10.1.2.3:77",
        "10.0.0.0/8",
        "drain",
        "vllm",
        "HS256",
        "stdout",
    ]
    before = Settings()
    for text in [*texts, "some text that is long enough for a secret"]:
        try:
            value = read_by(hint, text)
        except SettingError:
            continue
        if value == value_at(before, path):
            continue
        if isinstance(value, Secret):
            with pytest.raises(SettingError, match="everybody here can see a command's arguments") as caught:
                apply(before, f"{path}={text}")
            assert text not in str(caught.value)
            return
        after = apply(before, f"{path}={text}")
        assert value_at(after, path) == value
        changed = [other for other, _ in SETTINGS if value_at(after, other) != value_at(before, other)]
        assert changed == [path]
        assert apply(before, f" {path} = {text} ") == after
        return
    only_one = ["log.format"]  # it has one choice so far
    assert path in only_one, f"none of {texts} is a value of {path} other than its default"


@pytest.mark.parametrize(("path", "hint"), SETTINGS, ids=[path for path, _ in SETTINGS])
def test_a_wrong_value_names_its_setting(path, hint):
    if how_written(hint).get("read") in (read_text, read_path, read_key_source):
        assert value_at(apply(Settings(), f"{path}=!"), path) == "!"
        return
    with pytest.raises(SettingError) as caught:
        apply(Settings(), f"{path}=!?")
    assert str(caught.value).startswith(f"{path}: ")
    assert "!?" in str(caught.value) or path == "auth.jwt.secret"


def test_a_list_has_commas():
    settings = apply(Settings(), "trusted_proxies=10.0.0.0/8, ::1 ,")
    assert settings.trusted_proxies == ("10.0.0.0/8", "::1")
    assert apply(settings, "trusted_proxies=").trusted_proxies == ()


def test_one_wrong_item_is_enough():
    with pytest.raises(SettingError, match=r"trusted_proxies: 'nope' is not an address range"):
        apply(Settings(), "trusted_proxies=10.0.0.0/8,nope")


@pytest.mark.parametrize("key", ["workers", "models", "limits.tiers", "passthrough", "workers.a.url"])
def test_tables_are_a_files(key):
    with pytest.raises(SettingError, match="there is no setting"):
        apply(Settings(), f"{key}=x")


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
