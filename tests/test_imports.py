"""Imports point one way (design, section 4), and rooms know each other only by what they hand over."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import relayd

ROOT = Path(relayd.__file__).parent

# Each may import from those before it, and from itself.
LAYERS = [
    {"_fast"},
    {"config", "faults", "readers", "records", "registry"},
    {"net"},
    {"auth", "routing", "dialects", "limits"},
    {"telemetry"},
    {"upstream"},
    {"phases"},
    {"front", "admin"},
    {"server", "settings_file"},
    {"demo"},
    {"commands"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
ALONE = {"mock"}  # imports nothing but itself, and only what starts it may import it
ROOT_WORDS = LAYERS[1]


def room_of(module: str) -> str:
    """Return the room that a module's dotted name lies in: "relayd.front.door" is in "front"."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports_of(path: Path) -> Iterator[str]:
    """Yield the dotted names of relayd's own modules that a file imports, at whatever place in it."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("relayd."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module == "relayd":
                yield from (f"relayd.{alias.name}" for alias in node.names if is_module(alias.name))
            elif (node.module or "").startswith("relayd."):
                yield node.module


def is_module(name: str) -> bool:
    """True if `name` is a module of the package, not a constant in it."""
    return (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists()


def sources() -> list[Path]:
    """Return every Python file of the package."""
    return sorted(path for path in ROOT.rglob("*.py") if "__pycache__" not in path.parts)


def name_of(path: Path) -> str:
    """Return the dotted name of a file's module."""
    return ".".join(["relayd", *path.relative_to(ROOT).with_suffix("").parts])


PATHS = pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))


@PATHS
def test_imports_point_one_way(path):
    room = room_of(name_of(path))
    if room in ("__init__", *ALONE):
        return
    assert room in LEVEL, f"{room} has no place in the order of design section 4"
    for imported in imports_of(path):
        other = room_of(imported)
        if other in ALONE:
            assert room in ("commands", "demo"), f"{path} imports {imported}"
            continue
        assert LEVEL[other] <= LEVEL[room], f"{path} imports {imported}"
        same_layer = LEVEL[other] == LEVEL[room] and other != room
        assert not same_layer or room in ROOT_WORDS, f"{path} imports {imported}, a room beside its own"


@PATHS
def test_what_stands_alone_imports_nothing_of_relayd(path):
    room = room_of(name_of(path))
    if room in ALONE:
        others = {name for name in imports_of(path) if room_of(name) != room}
        assert not others, f"{path} imports {others}"


COMPILED = sorted([*ROOT.glob("_fast/*.pyx"), *ROOT.glob("_fast/*.pxd")])


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.name)
def test_compiled_code_imports_nothing_but_itself(path):
    named = set(re.findall(r"^\s*(?:from|cimport|import)\s+(relayd[\w.]*)", path.read_text(), re.MULTILINE))
    assert all(name.startswith("relayd._fast.") for name in named), named


TYPED = sorted(path for path in ROOT.rglob("*.pxd") if path.with_suffix(".py").exists())


@pytest.mark.parametrize("path", TYPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_types_are_taken_from_where_imports_may_point(path):
    room = room_of(name_of(path))
    for imported in re.findall(r"^from (relayd[\w.]*) cimport", path.read_text(), re.MULTILINE):
        assert LEVEL[room_of(imported)] <= LEVEL[room], f"{path} takes types from {imported}"


@pytest.mark.parametrize("path", TYPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_has_types_is_compiled(path):
    module = importlib.import_module(name_of(path))
    assert module.__file__.endswith(".so"), "it runs as Python: see tools/compile"


def test_there_is_no_ring_among_the_compiled_modules():
    """One module's header names another's: a ring could not be imported."""
    needs = {
        path.stem: set(re.findall(r"relayd\._fast\.(\w+)", path.read_text())) - {path.stem}
        for path in COMPILED
        if path.suffix == ".pxd"
    }
    while needs:
        free = [name for name, others in needs.items() if not others & needs.keys()]
        assert free, f"a ring: {needs}"
        for name in free:
            del needs[name]


def test_only_doors_and_the_control_plane_know_aiohttp():
    """Phases are plain functions: no aiohttp type reaches them (design, section 1)."""
    for path in sources():
        room = room_of(name_of(path))
        if room in ("front", "admin", "net", "server", "mock", "demo", "commands"):
            continue
        tree = ast.walk(ast.parse(path.read_text()))
        names = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
        names |= {
            node.module or ""
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
        }
        assert not any(name.split(".")[0] == "aiohttp" for name in names), path


def test_only_the_driver_and_its_dialers_run_a_loop():
    """A policy, a dialect and a breaker are sans-I/O: the simulator and the tests drive the same objects."""
    for path in [*ROOT.glob("routing/*.py"), *ROOT.glob("dialects/*.py"), ROOT / "upstream" / "breakers.py"]:
        text = path.read_text()
        for word in ("asyncio", "import time", "import random", "socket"):
            assert word not in text, f"{path} knows {word}"


def test_every_room_of_the_order_exists():
    rooms = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert set(LEVEL) <= rooms


def test_the_version_is_told():
    assert re.fullmatch(r"\d+\.\d+\.\d+", relayd.__version__)
