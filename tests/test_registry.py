"""A plug-in is found by the name it registered under, and a wrong name is answered with the right ones."""

from __future__ import annotations

import pytest

from relayd import registry
from relayd.registry import did_you_mean, plugin, plugins, register


@pytest.fixture
def rooms(monkeypatch):
    """Let a test register what it likes."""
    monkeypatch.setattr(registry, "_ROOMS", {room: dict(known) for room, known in registry._ROOMS.items()})


def test_finds_what_the_issue_asks_for():
    assert {"round_robin", "least_conn", "least_tokens"} <= set(plugins("routing"))
    assert {"openai", "anthropic", "plain"} <= set(plugins("dialects"))


@pytest.mark.parametrize("room", ["routing", "dialects"])
def test_finds_by_name(room):
    for name, found in plugins(room).items():
        assert plugin(room, name) is found


def test_a_wrong_name_lists_the_right_ones():
    with pytest.raises(KeyError) as caught:
        plugin("routing", "least_con")
    message = caught.value.args[0]
    assert "least_conn, least_tokens, round_robin" in message
    assert "did you mean 'least_conn'" in message


def test_a_name_like_none_gets_no_hint():
    with pytest.raises(KeyError) as caught:
        plugin("routing", "zzz")
    assert "did you mean" not in caught.value.args[0]


def test_a_name_is_taken_once(rooms):
    @register("routing", "mine")
    class Mine:
        pass

    assert plugin("routing", "mine") is Mine
    register("routing", "mine")(Mine)  # the same again: a module imported twice
    with pytest.raises(ValueError, match="two plug-ins named 'mine'"):
        register("routing", "mine")(object())


def test_what_is_handed_out_is_a_copy(rooms):
    plugins("routing").clear()
    assert plugins("routing")


def test_hints():
    assert did_you_mean("polcy", ["policy", "listen"]) == "; did you mean 'policy'?"
    assert did_you_mean("x", []) == ""
