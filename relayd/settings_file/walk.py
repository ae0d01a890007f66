"""From YAML nodes to Settings, by the declaration in `config`, noting everything that is wrong on the way.

The walk goes where the declaration leads: what is not declared is named and left, so neither nesting nor
aliases lead it far.  Where a value is wrong the default stands in, so that what follows can be looked at as
well; Settings made from a file with errors are for looking at only.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Annotated, Any, get_origin, get_type_hints

import msgspec
import yaml

from relayd.config import Settings, entry_type, every_key, how_written
from relayd.readers import Kind, SettingError, kind_of, quoted, read_key_source, read_path, read_sink
from relayd.settings_file.fill import Filled, Filler, names_only
from relayd.settings_file.problems import Path, Place, Problems, TooManyProblems, dotted
from relayd.settings_file.text import place_at

MOST_VISITS = 100_000  # of nodes: through aliases a small file may name many

NULL = "tag:yaml.org,2002:null"
NOTHING: Any = object()  # what a value that cannot be read becomes

SUSPICIOUS = re.compile(r"key|secret|header|token|passw|auth|credential|bearer", re.IGNORECASE)

Reader = Callable[[str], Any]


class SecretFound(msgspec.Struct, frozen=True):
    """A secret of the file and how it got there."""

    path: Path
    in_plain_text: bool
    files: tuple[str, ...]


class Walk:
    """One file's walk; `places` and `raws` say where each path stands and what placeholder it has."""

    def __init__(self, problems: Problems, filler: Filler) -> None:
        self.problems = problems
        self.filler = filler
        self.places: dict[Path, Place] = {}
        self.raws: dict[Path, str] = {}
        self.secrets: list[SecretFound] = []
        self.harmless: set[int] = set()  # ids of value nodes that may be shown in an excerpt
        self.visits = 0

    def settings(self, root: yaml.Node) -> Settings:
        """Return the settings of a whole file."""
        if not isinstance(root, yaml.MappingNode):
            message = f"settings are written KEY: VALUE, line by line; this is {kind_found(root)}"
            self.problems.error(place_at(root.start_mark), (), message, "see examples/minimal.yaml")
            return Settings()
        settings: Settings = self._section(Settings, root, ())
        return settings

    # Mappings

    def _section(self, struct: type[msgspec.Struct], node: yaml.Node, path: Path) -> Any:
        hints = declared(struct)
        values: dict[str, Any] = {}
        for key, key_node, value_node in self._pairs(node, path, lambda: section_example(struct)):
            if key not in hints:
                self._unknown(key, key_node, value_node, struct, path)
                continue
            self._found((*path, key), key_node, value_node)
            values[key] = self._setting(hints[key], value_node, (*path, key))
        return self._complete(struct, values, node, path)

    def _complete(
        self, struct: type[msgspec.Struct], values: dict[str, Any], node: yaml.Node, path: Path
    ) -> Any:
        usable = {key: value for key, value in values.items() if value is not NOTHING}
        for field in fields_of(struct):
            if field.required and field.name not in usable:
                is_missing = field.name not in values and not self.problems.touches(path)
                self.problems.broken.add((*path, field.name))
                usable[field.name] = () if "rows" in how_written(declared(struct)[field.name]) else ""
                if is_missing:
                    example = example_of(declared(struct)[field.name])
                    self.problems.error(
                        self.place(path, node),
                        path,
                        f"{field.name!r} is missing here",
                        f"add {field.name}: {example}",
                    )
        return struct(**usable)

    def _setting(self, hint: Any, node: yaml.Node, path: Path) -> Any:
        if get_origin(hint) is not Annotated:
            return self._section(hint, node, path)
        written = how_written(hint)
        if "table" in written:
            return self._table(hint, written["table"], written.get("read"), node, path)
        if "rows" in written:
            return self._rows(hint, written["rows"], node, path)
        if "item" in written:
            return self._items(written["item"], node, path)
        return self._scalar(written["read"], node, path)

    def _table(
        self, hint: Any, name_reader: Reader, reader: Reader | None, node: yaml.Node, path: Path
    ) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, key_node, value_node in self._pairs(node, path, lambda: table_example(hint)):
            inside = (*path, key)
            try:
                name = name_reader(key)
            except SettingError as error:
                self.problems.error(place_at(key_node.start_mark), inside, str(error))
                self._entry(hint, reader, value_node, inside)
                continue
            if name in table:
                self.problems.error(
                    place_at(key_node.start_mark), inside, f"{quoted(name)} is written twice", "take one out"
                )
                continue
            self._found(inside, key_node, value_node)
            self.places[(*path, name)] = self.places[inside]
            value = self._entry(hint, reader, value_node, inside)
            if value is not NOTHING:
                table[name] = value
        return table

    def _entry(self, hint: Any, reader: Reader | None, node: yaml.Node, path: Path) -> Any:
        return self._scalar(reader, node, path) if reader else self._section(entry_type(hint), node, path)

    def _pairs(
        self, node: yaml.Node, path: Path, example: Callable[[], str]
    ) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Yield (key, its node, the value's node) of a mapping, each key once."""
        self._visit(node)
        if not isinstance(node, yaml.MappingNode):
            self._wrong_kind(node, path, "a mapping", example())
            return
        seen: dict[str, Place] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            place = place_at(key_node.start_mark)
            if key in seen:
                first = seen[key]
                where = f"line {first.line}" if first.line != place.line else f"column {first.column}"
                message = f"{quoted(key)} is written twice: first in {where}, again in line {place.line}"
                self.problems.error(place, (*path, key), message, "keep one of the two")
                continue
            seen[key] = place
            yield key, key_node, value_node

    def _key(self, node: yaml.Node, path: Path) -> str | None:
        place = place_at(node.start_mark)
        if not isinstance(node, yaml.ScalarNode):
            self.problems.error(place, path, f"a key is a word, not {kind_found(node)}", "write KEY: VALUE")
            return None
        if node.value == "<<" and node.style is None:
            self.problems.error(
                place, path, "merging mappings with << is not supported", "write the settings out; *NAME is"
            )
            return None
        return str(node.value)

    def _unknown(
        self, key: str, node: yaml.Node, value: yaml.Node, struct: type[msgspec.Struct], path: Path
    ) -> None:
        where = f" in {dotted(path)}" if path else ""
        hints = declared(struct)
        self.problems.error(
            place_at(node.start_mark),
            (*path, key),
            f"there is no setting {quoted(key)}{where}",
            hint_for(key, list(hints)),
        )
        for meant in close_to(key, hints):
            self.problems.broken.add((*path, meant))  # nothing is to be said of its not being there
            if is_nearly(key, meant):
                self._look_into(hints[meant], value, (*path, key))

    def _look_into(self, hint: Any, node: yaml.Node, path: Path) -> None:
        """Walk the section that was probably meant; let an excerpt show a value that a setting would take."""
        if get_origin(hint) is not Annotated:
            self._section(hint, node, path)
            return
        written = how_written(hint)
        if "table" in written:
            self._table(hint, written["table"], written.get("read"), node, path)
            return
        if "rows" in written:
            written = {"item": how_written(declared(entry_type(hint))[written["rows"]])["read"]}
        reader = written.get("item" if isinstance(node, yaml.SequenceNode) else "read")
        if reader is None or not kind_of(reader).pattern:
            return  # what would take any text may be given a secret
        for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(item, yaml.ScalarNode) and re.fullmatch(kind_of(reader).pattern, item.value):
                self.harmless.add(id(item))

    # Lists

    def _list(self, node: yaml.Node, path: Path, example: str) -> Iterator[tuple[yaml.Node, Path]]:
        self._visit(node)
        if not isinstance(node, yaml.SequenceNode):
            self._wrong_kind(node, path, "a list", example)
            return
        for index, item in enumerate(node.value):
            inside = (*path, index)
            self.places[inside] = place_at(item.start_mark)
            yield item, inside

    def _items(self, reader: Reader, node: yaml.Node, path: Path) -> Any:
        example = f"[{kind_of(reader).examples[0]}]"
        self.harmless.add(id(node))  # no list of plain items has secrets
        values = [self._scalar(reader, item, inside) for item, inside in self._list(node, path, example)]
        return tuple(value for value in values if value is not NOTHING)

    def _rows(self, hint: Any, shorthand: str, node: yaml.Node, path: Path) -> Any:
        struct = entry_type(hint)
        reader = how_written(declared(struct)[shorthand])["read"]
        rows = []
        for item, inside in self._list(node, path, example_of(hint)):
            if isinstance(item, yaml.ScalarNode):
                self.places[(*inside, shorthand)] = self.places[inside]
                value = self._scalar(reader, item, (*inside, shorthand))
                rows.append(struct(**{shorthand: "" if value is NOTHING else value}))
            else:
                rows.append(self._section(struct, item, inside))
        return tuple(rows)

    # Scalars

    def _scalar(self, reader: Reader, node: yaml.Node, path: Path) -> Any:
        self._visit(node)
        kind = kind_of(reader)
        if not isinstance(node, yaml.ScalarNode) or node.tag == NULL:
            return self._wrong_kind(node, path, kind.words, one_of(kind))
        raw = node.value.removesuffix("\n") if node.style in ("|", ">") else node.value
        try:
            filled = self.filler.fill(raw, is_secret=kind.is_secret)
        except SettingError as error:
            self._show(node, raw, kind)
            return self._wrong(node, path, str(error))
        self._show(node, raw, kind)
        if filled.by_placeholder:
            self.raws[path] = raw
        try:
            return self._read(reader, kind, filled, path)
        except SettingError as error:
            if filled.by_placeholder and not kind.is_secret:  # such messages quote what they refuse
                return self._wrong(
                    node, path, f"what {quoted(raw)} stands for is not {kind.words}", one_of(kind)
                )
            return self._wrong(node, path, str(error))

    def _read(self, reader: Reader, kind: Kind, filled: Filled, path: Path) -> Any:
        if kind.is_secret:
            in_plain_text = not filled.by_placeholder or filled.has_default
            self.secrets.append(SecretFound(path, in_plain_text, filled.files))
        elif not filled.text.isprintable() and any(ord(letter) < 32 for letter in filled.text):
            raise SettingError("a control character, such as a line break, has no place here")
        elif any("\ud800" <= letter <= "\udfff" for letter in filled.text):
            raise SettingError("there is half a character in it: write it as it is, not by \\u")
        return self._from_here(reader, reader(filled.text))

    def _from_here(self, reader: Reader, value: Any) -> Any:
        """Return a path as one that begins where the settings file lies; any other value as it is."""
        if reader is read_sink and value.startswith("file:"):
            return "file:" + os.path.join(self.filler.directory, value.removeprefix("file:"))
        is_path = reader is read_path or (reader is read_key_source and "://" not in value)
        return os.path.join(self.filler.directory, value) if is_path and value else value

    def _show(self, node: yaml.Node, raw: str, kind: Kind) -> None:
        if not kind.is_secret or names_only(raw):
            self.harmless.add(id(node))

    # All of them

    def place(self, path: Path, node: yaml.Node | None = None) -> Place:
        """Return where a path stands, or what it is part of."""
        while path:
            if path in self.places:
                return self.places[path]
            path = path[:-1]
        return place_at(node.start_mark) if node else Place()

    def _found(self, path: Path, key: yaml.Node, value: yaml.Node) -> None:
        has_value = isinstance(value, yaml.ScalarNode) and value.tag != NULL
        self.places[path] = place_at(value.start_mark if has_value else key.start_mark)

    def _wrong_kind(self, node: yaml.Node, path: Path, expected: str, example: str) -> Any:
        found = f"not {kind_found(node)}"
        if isinstance(node, yaml.ScalarNode) and node.tag == NULL:
            found = f"and {node.value} is none" if node.value else "and there is nothing"
        return self._wrong(
            node, path, f"{expected} is expected here, {found}", f"write {example}, or take the key out"
        )

    def _wrong(self, node: yaml.Node, path: Path, message: str, hint: str = "") -> Any:
        is_empty = isinstance(node, yaml.ScalarNode) and node.tag == NULL
        self.problems.error(
            self.place(path, node) if is_empty else place_at(node.start_mark), path, message, hint
        )
        return NOTHING

    def _visit(self, node: yaml.Node) -> None:
        self.visits += 1
        if self.visits > MOST_VISITS:
            self.problems.error(
                place_at(node.start_mark),
                (),
                f"there are more than {MOST_VISITS:,} values",
                "is an alias (*NAME) used very often?",
            )
            raise TooManyProblems


# --- words about the declaration --------------------------------------------------------------------


@cache
def declared(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the annotations of a struct's settings."""
    return get_type_hints(struct, include_extras=True)


@cache
def fields_of(struct: type[msgspec.Struct]) -> tuple[Any, ...]:
    """Return the fields of a struct: msgspec takes half a millisecond to say."""
    return msgspec.structs.fields(struct)


def kind_found(node: yaml.Node) -> str:
    """Return what a person sees in a node."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"


def one_of(kind: Kind) -> str:
    """Return examples of what is accepted."""
    return (
        ", ".join(kind.examples[:-1]) + " or " + kind.examples[-1] if kind.examples[1:] else kind.examples[0]
    )


def example_of(hint: Any) -> str:
    """Return how a setting may be written."""
    if get_origin(hint) is not Annotated:
        return section_example(hint)
    written = how_written(hint)
    if "table" in written:
        return table_example(hint)
    if "rows" in written:
        return "[" + example_of(declared(entry_type(hint))[written["rows"]]) + "]"
    if "item" in written:
        return f"[{kind_of(written['item']).examples[0]}]"
    return kind_of(written["read"]).examples[0]


def section_example(struct: type[msgspec.Struct]) -> str:
    """Return a mapping that a section accepts: its required settings, or its first."""
    hints = declared(struct)
    names = [field.name for field in fields_of(struct) if field.required] or [next(iter(hints))]
    return "{" + ", ".join(f"{name}: {example_of(hints[name])}" for name in names) + "}"


def table_example(hint: Any) -> str:
    """Return a mapping that a table accepts."""
    written = how_written(hint)
    name = kind_of(written["table"]).examples[0]
    value = kind_of(written["read"]).examples[0] if "read" in written else section_example(entry_type(hint))
    return f"{{{name}: {value}}}"


def hint_for(key: str, known: list[str]) -> str:
    """Return what was probably meant by a key that is not known here."""
    close = close_to(key, known)
    elsewhere = [path for path in every_path() if path.rsplit(".", 1)[-1] == key][:3]
    hints = [f"did you mean {close[0]!r}?"] if close else []
    hints += [f"there is {' and '.join(elsewhere)}"] if elsewhere else []
    return "; ".join(hints) or f"known here: {', '.join(known)}"


def close_to(key: str, known: Iterable[str]) -> list[str]:
    """Return the setting that is written most like `key`, if one is."""
    return difflib.get_close_matches(key.lower().replace("-", "_")[:64], list(known), n=1)


def is_nearly(key: str, meant: str) -> bool:
    """True for a slip of the finger, and nothing that sounds like a secret."""
    plain = key.lower().replace("-", "_")
    alike = difflib.SequenceMatcher(None, plain, meant).ratio()
    return alike > 0.8 and not SUSPICIOUS.search(plain)


@cache
def every_name() -> frozenset[str]:
    """Return the names of all settings and of the sections they are in."""
    return frozenset(name for path in every_path() for name in re.split(r"\.|\[\]\.", path))


@cache
def every_path() -> tuple[str, ...]:
    """Return the paths of all settings and of the sections they are in."""
    paths = [path for path, _ in every_key()]
    sections = {path.rsplit(".", depth)[0] for path in paths for depth in range(1, path.count(".") + 1)}
    return (*paths, *sorted(sections - set(paths)))
