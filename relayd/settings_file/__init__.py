"""Settings from a file, with all that is wrong in it at once.

`text` makes YAML nodes of bytes, `walk` makes Settings of nodes by the declaration in `config`, `fill` puts
in what `${...}` stands for, `parts` tries what settings and files come to, `checks` looks at what no single
setting shows, `excerpts` adds the lines, `schema` is the declaration for editors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import yaml

from relayd.config import Settings, apply, find_path
from relayd.readers import SettingError
from relayd.settings_file.checks import View, check_all
from relayd.settings_file.excerpts import with_excerpts
from relayd.settings_file.fill import Filler
from relayd.settings_file.parts import check_parts
from relayd.settings_file.problems import Path, Place, Problem, Problems, TooManyProblems
from relayd.settings_file.text import NotReadable, compose, read_text
from relayd.settings_file.walk import Walk

__all__ = ["Problem", "load", "one_line", "read_file"]


def load(
    path: str,
    assignments: Sequence[str] = (),
    *,
    insecure: bool = False,
    on_warning: Callable[[str], None] = lambda line: None,
) -> Settings:
    """Return the settings of a file, changed by `KEY=VALUE` assignments.

    Raises:
        SettingError: they cannot be used; the message has a line for each error.
    """
    settings, problems = read_file(path, assignments, insecure=insecure)
    if settings is None:
        lines = [one_line(path, problem) for problem in problems if problem.severity == "error"]
        raise SettingError("\n".join([f"the settings in {path} cannot be used:", *lines]))
    for problem in problems:
        on_warning(one_line(path, problem))
    return settings


def one_line(file: str, problem: Problem, *, with_hint: bool = True) -> str:
    """Return a problem as compilers write it."""
    where = f"{file}:{problem.line}:{problem.column}" if problem.line else file
    path = f"{problem.path}: " if problem.path else ""
    hint = f" ({problem.hint})" if problem.hint and with_hint else ""
    return f"{where}: {problem.severity}: {path}{problem.message}{hint}"


def read_file(
    path: str, assignments: Sequence[str] = (), *, insecure: bool = False
) -> tuple[Settings | None, list[Problem]]:
    """Return the settings of a file, None if they cannot be used, and all that is wrong with it.

    Raises:
        SettingError: one of the assignments cannot be used.
    """
    text, root, problems = "", None, Problems()
    settings, harmless = None, set[int]()
    try:
        text = read_text(path)
        root = compose(text)
        if root is None or root.value == "":
            raise NotReadable("there are no settings in it", "add workers: {NAME: {url: http://HOST:PORT}}")
        walk = Walk(problems, Filler(os.path.dirname(path), os.environ))
        harmless = walk.harmless
        settings = _settings(walk, root, path, assignments, insecure)
    except NotReadable as error:
        problems.error(error.place, (), error.message, error.hint)
    except TooManyProblems:
        pass  # they say so themselves
    found = sorted(problems.found, key=lambda problem: (not problem.line, problem.line, problem.column))
    return None if problems.has_errors else settings, with_excerpts(found, text, root, harmless)


def _settings(walk: Walk, root: yaml.Node, file: str, assignments: Sequence[str], insecure: bool) -> Settings:
    settings = walk.settings(root)
    written: set[Path] = set(walk.places)
    for assignment in assignments:
        settings = apply(settings, assignment)
        path: Path = tuple(find_path(assignment.partition("=")[0].strip()).split("."))
        written.add(path)
        walk.raws.pop(path, None)
        walk.places[path] = Place()
    view = View(settings, walk.problems, walk.place, written, walk.raws)
    check_parts(view)
    check_all(view, walk.secrets, file, insecure)
    return settings
