"""API keys: a file of their hashes, and whose they are.

    - sha256: 4be0c1a7d1f3f0b2a95c7a3f3fd2e0ad7a1c5d8e9b604c2f13a7e5d6908b1c24
      tenant: search-team
      tier: gold
      models: [llama-70b]
      expires: 2027-01-31

The file has no keys, only what tells that a key is right, so that reading it lets nobody in.  A key is
looked up by its whole hash: what a comparison of hashes may tell by its time is of no use to who cannot
choose the hash.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import yaml

from relayd.auth.base import DEFAULT_TIER, LONGEST_TENANT, Granted, Refused, Tenant, is_tenant_name
from relayd.auth.files import read_file, remarks_on_readers
from relayd.readers import Remark, SettingError, read_name, refusal
from relayd.registry import did_you_mean

SETTING = "auth.keys"
LARGEST_FILE = 4 << 20  # bytes; some 30,000 keys
FIELDS = ("sha256", "tenant", "tier", "models", "expires")
ERRORS_SHOWN = 20
NEVER = math.inf
RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)

T = TypeVar("T")


class ApiKeys(NamedTuple):
    """The keys of a file, by their SHA-256."""

    by_digest: dict[bytes, Granted]
    remarks: list[Remark]  # what an operator should know

    def find(self, key: bytes, now: float) -> Granted | Refused:
        """Return whose key it is; `now` is the wall clock's, in seconds."""
        found = self.by_digest.get(hashlib.sha256(key).digest())
        if found is None:
            return Refused("unknown_key")
        return found if now < found.ends_at else Refused("key_expired")


NO_KEYS = ApiKeys({}, [])


class EntryError(Exception):
    """Something in the file that cannot be used, and where it stands."""

    def __init__(self, node: yaml.Node, text: str) -> None:
        super().__init__(text)
        self.at = f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def read_keys(path: str) -> ApiKeys:
    """Return the keys of the file at `path`.

    Raises:
        SettingError: the file cannot be used; the message names every place in it that is wrong.
    """
    entries = entries_of(path, read_file(SETTING, path, LARGEST_FILE))
    by_digest: dict[bytes, Granted] = {}
    errors = []
    lines: dict[bytes, int] = {}
    for entry in entries:
        try:
            digest, granted = read_entry(entry)
            if digest in by_digest:
                raise EntryError(entry, f"the same sha256 as on line {lines[digest]}")
            by_digest[digest], lines[digest] = granted, entry.start_mark.line + 1
        except EntryError as error:
            errors.append(Remark(SETTING, str(error), file=path, at=error.at))
    if errors:
        more = f"there are {len(errors) - ERRORS_SHOWN} more such entries"
        further = [Remark(SETTING, more, file=path)] if len(errors) > ERRORS_SHOWN else []
        raise refusal(*errors[:ERRORS_SHOWN], *further)
    return ApiKeys(by_digest, list(remarks_on(path, by_digest)))


def remarks_on(path: str, by_digest: dict[bytes, Granted]) -> Iterator[Remark]:
    """Yield what an operator should know of a file that can be used."""
    yield from remarks_on_readers(SETTING, path)
    if not by_digest:
        hint = "relayd token hash-key --new --tenant NAME writes an entry"
        yield Remark(SETTING, "there is no key in it: nobody can use a key", hint, path)


def entries_of(path: str, data: bytes) -> list[yaml.Node]:
    """Return the nodes of the list that the file is."""
    try:
        root: Any = yaml.compose(data.decode(), Loader=yaml.CSafeLoader)
    except UnicodeDecodeError:
        raise refusal(Remark(SETTING, "it is not UTF-8", "save it as UTF-8", path)) from None
    except yaml.MarkedYAMLError as error:
        raise refusal(why_not_yaml(path, error, data)) from None
    except yaml.YAMLError:
        raise refusal(Remark(SETTING, "it has characters that YAML does not allow", file=path)) from None
    if root is None:
        return []
    if not isinstance(root, yaml.SequenceNode):
        raise refusal(Remark(SETTING, "it is not a list", "write `- sha256: ...` for each key", path))
    return list(root.value)


def why_not_yaml(path: str, error: yaml.MarkedYAMLError, data: bytes) -> Remark:
    """Return where and why a text is not YAML."""
    said = str(error.problem or error.context)
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Remark(SETTING, f"it is not YAML: {said}", file=path)
    line = data.decode().splitlines()[mark.line : mark.line + 1]
    is_tab = line and line[0][mark.column : mark.column + 1] == "\t"
    why = "a tab, where YAML wants spaces" if is_tab else f"this is not YAML: {said}"
    return Remark(SETTING, why, file=path, at=f"{mark.line + 1}:{mark.column + 1}")


def read_entry(entry: yaml.Node) -> tuple[bytes, Granted]:
    """Return an entry's hash, and what its key is good for."""
    fields = dict(fields_of(entry))
    for name in ("sha256", "tenant"):
        if name not in fields:
            raise EntryError(entry, f"{name} is missing: add it")
    tenant = Tenant(
        read_with(read_tenant, fields["tenant"]),
        read_with(read_name, fields["tier"]) if "tier" in fields else DEFAULT_TIER,
        read_models(fields["models"]) if "models" in fields else None,
    )
    ends_at = read_with(read_end, fields["expires"]) if "expires" in fields else NEVER
    return read_with(read_hash, fields["sha256"]), Granted(tenant, ends_at)


def fields_of(entry: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the fields of an entry: known ones, each once."""
    if not isinstance(entry, yaml.MappingNode):
        raise EntryError(entry, f"not an entry; it has the fields {', '.join(FIELDS)}")
    seen = set()
    for key, value in entry.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else "that is no text"
        if name not in FIELDS:
            raise EntryError(key, f"there is no field {name!r}{did_you_mean(str(name), FIELDS)}")
        if name in seen:
            raise EntryError(key, f"{name} is there twice")
        seen.add(name)
        yield name, value


def read_with(reader: Callable[[str], T], node: yaml.Node) -> T:
    """Return what `reader` makes of a scalar's text."""
    if not isinstance(node, yaml.ScalarNode):
        raise EntryError(node, "a single value is expected here")
    try:
        return reader(str(node.value))
    except SettingError as error:
        raise EntryError(node, str(error)) from None


def read_models(node: yaml.Node) -> frozenset[str]:
    """Return the models that a key is for."""
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise EntryError(node, "models is a list of names, such as [llama-70b]; without it, all are allowed")
    return frozenset(read_with(read_name, item) for item in node.value)


def read_hash(text: str) -> bytes:
    """Return the 32 bytes of a SHA-256 in hex."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise SettingError("sha256 has 64 hexadecimal digits: relayd token hash-key writes an entry")
    return bytes.fromhex(text)


def read_tenant(text: str) -> str:
    """Return a tenant's name."""
    if not is_tenant_name(text):
        raise SettingError(f"a tenant is a printable text of 1 to {LONGEST_TENANT} characters")
    return text


def read_end(text: str) -> float:
    """Return the wall-clock time from which a key is worth nothing: a day begins at midnight, UTC."""
    try:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()
        if RFC_3339.fullmatch(text):
            return datetime.datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError):
        pass
    raise SettingError("expires is a day, such as 2027-01-31, or a time, such as 2027-01-31T12:00:00Z")
