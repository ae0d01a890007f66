"""How a plug-in gets its name.

A room (`routing`, `dialects`, ...) is a package whose modules register classes by the name that settings
use.  Adding a policy is adding one file with one `@register` line; nothing else lists it.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_ROOMS: dict[str, dict[str, Any]] = {}


def register(room: str, name: str) -> Callable[[T], T]:
    """Make the decorated class known to `room` under `name`."""

    def keep(plugin: T) -> T:
        known = _ROOMS.setdefault(room, {})
        if name in known and known[name] is not plugin:
            raise ValueError(f"{room} has two plug-ins named {name!r}")
        known[name] = plugin
        return plugin

    return keep


def plugins(room: str) -> dict[str, Any]:
    """Return every plug-in of `room` by name, importing the room's modules on first use."""
    package = importlib.import_module(f"relayd.{room}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"relayd.{room}.{module.name}")
    return dict(_ROOMS.get(room, {}))


def plugin(room: str, name: str) -> Any:
    """Return the plug-in `name` of `room`.

    Raises:
        KeyError: there is none; the message lists those there are.
    """
    known = plugins(room)
    if name not in known:
        raise KeyError(f"{name!r} is not one of {', '.join(sorted(known))}{did_you_mean(name, known)}")
    return known[name]


def did_you_mean(word: str, choices: Any) -> str:
    """Return "; did you mean X?" for the closest of `choices`, or nothing."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
