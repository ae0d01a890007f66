"""The JSON Schema says what the loader does, as far as a schema can."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from relayd.config import Settings, every_key, every_setting, how_written
from relayd.readers import read_choice
from relayd.settings_file.schema import as_written, scalar, schema
from tests.test_config import BAD, GOOD, value_at

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCHEMA = schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
WORKERS = {"w": {"url": "http://h"}}


def is_valid(**settings: Any) -> bool:
    return VALIDATOR.is_valid({"workers": WORKERS, **settings})


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize("name", ["minimal.yaml", "relayd.yaml"])
def test_the_examples_fit(name):
    text = (EXAMPLES / name).read_text()
    full = re.sub(r"^(\s*)#(\S)", r"\1\2", text, flags=re.MULTILINE)
    for version in (text, full):
        VALIDATOR.validate(yaml.safe_load(version))


@pytest.mark.parametrize("path", [path for path, _ in every_key()])
def test_every_setting_is_in_it_with_its_meaning(path):
    node = SCHEMA
    for part in path.split("."):
        if part == "NAME":
            node = node["additionalProperties"]
            continue
        node = node["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            node = node["items"]["anyOf"][1]
    assert node["description"]


@pytest.mark.parametrize(("path", "hint"), list(every_setting()), ids=[path for path, _ in every_setting()])
def test_a_default_is_written_as_it_would_be_read(path, hint):
    written, default = how_written(hint), value_at(Settings(), path)
    if "item" in written:
        assert tuple(written["item"](item) for item in default) == default
        return
    text = as_written(default, written["read"])
    assert not default if text == "" else written["read"](text) == default
    node: dict[str, Any] = {"properties": SCHEMA["properties"]}
    for part in path.split("."):
        node = node["properties"][part]
    assert str(node.get("default", "")) == text
    if text:
        jsonschema.validate(node["default"], node)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "off"), (0.25, "250ms"), (1.5, "1.5s"), (90, "90s"), (120, "2m"), (7200, "2h")]
)
def test_durations_as_people_write_them(seconds, text):
    from relayd.readers import read_duration

    assert as_written(seconds, read_duration) == text
    assert read_duration(text) == seconds


@pytest.mark.parametrize(("reader", "text", "value"), GOOD)
def test_what_is_read_is_valid(reader, text, value):
    if text == text.lower():
        assert jsonschema.Draft202012Validator(scalar(reader)).is_valid(text)
    assert jsonschema.Draft202012Validator(scalar(reader)).is_valid("${NAME}")


@pytest.mark.parametrize(("reader", "texts", "message"), BAD)
def test_what_has_another_form_is_not(reader, texts, message):
    validator = jsonschema.Draft202012Validator(scalar(reader))
    if message.startswith(("not a duration", "not a rate", "not one")):
        assert not [text for text in texts if validator.is_valid(text)]


@pytest.mark.parametrize(
    "settings",
    [
        {"lisen": "x"},
        {"workers": {"w": {}}},
        {"workers": {"w": {"url": "http://h", "gpu": "T4"}}},
        {"workers": {"a b": {"url": "http://h"}}},
        {"workers": ["http://h"]},
        {"models": {"m": {}}},
        {"models": {"m": {"targets": []}}},
        {"models": {"m": {"targets": [{"model": "x"}]}}},
        {"tls": True},
        {"drain_delay": 30},
        {"engine": "vlm"},
        {"trusted_proxies": "10.0.0.0/8"},
    ],
)
def test_what_the_loader_refuses_is_refused(settings):
    assert not is_valid(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"drain_delay": "off"},
        {"drain_delay": False},  # what `off` is to editors that read YAML 1.1
        {"reveal": True},
        {"resilience": {"retry": {"attempts": 3}}},
        {"max_body": "${SIZE:-3MiB}"},
        {"engine": "${ENGINE}"},
        {"models": {"m": {"targets": ["w", {"worker": "w", "model": "x"}]}}},
        {"passthrough": {"/": "m"}},
    ],
)
def test_what_the_loader_reads_is_valid(settings):
    assert is_valid(**settings)


def test_choices_are_listed():
    assert scalar(read_choice("a", "b"))["anyOf"][0] == {"enum": ["a", "b"]}


def test_workers_are_required():
    assert not VALIDATOR.is_valid({})


def test_structs_refuse_what_they_do_not_know():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"x": 1}, Settings)
