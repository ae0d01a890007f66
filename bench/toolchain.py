"""The native programs, compiled when their sources are newer than they are."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from bench.faults import BenchFault

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Path(__file__).resolve().parent / "native"
CACHE = ROOT / "build" / "bench"
FLAGS = ["-O2", "-std=gnu11", "-pthread", "-Wall", "-Wextra", "-Wno-unused-function"]


def native(name: str) -> Path:
    """Returns the program `name` (its source is native/NAME.c), compiling it first if it has to be."""
    source, program = SOURCES / f"{name}.c", CACHE / name
    if not _is_fresh(program):
        _compile(source, program)
    return program


def _is_fresh(program: Path) -> bool:
    if not program.exists():
        return False
    newest = max(source.stat().st_mtime for source in SOURCES.iterdir())
    return program.stat().st_mtime >= newest


def _compile(source: Path, program: Path) -> None:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        raise BenchFault(
            "there is no C compiler, and Python cannot load a proxy at nginx's speed: install gcc or clang, "
            "or name a compiler in CC"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    beside = program.with_name(f"{program.name}.{os.getpid()}")  # two runs may compile at once
    command = [*compiler.split(), *FLAGS, "-o", str(beside), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchFault(f"'{' '.join(command)}' failed:\n{done.stderr.strip()}")
    beside.replace(program)
