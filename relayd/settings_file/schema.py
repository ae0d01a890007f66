"""The declaration as a JSON Schema (draft 2020-12), for editors and for whoever writes settings by program.

It is a little more generous than relayd: a placeholder may stand in any value, and what relayd reads as text
(`off`, `20`) may be a boolean or a number to others.  What no single value shows is `relayd check`'s.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args, get_origin

import msgspec

from relayd.config import Settings, entry_type, how_written
from relayd.readers import (
    QuotaOf,
    RateOf,
    Secret,
    kind_of,
    read_duration,
    read_mode,
    read_share,
    read_size,
    read_switch,
)
from relayd.settings_file.walk import Reader, declared

PLACEHOLDER = r"\$\{"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a settings file."""
    return {
        "$schema": DRAFT,
        "title": "relayd settings",
        **section(Settings),
        "required": ["workers"],
    }


def section(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema of a struct."""
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    hints = declared(struct)
    found: dict[str, Any] = {
        "type": "object",
        "description": (struct.__doc__ or "").strip(),
        "properties": {
            name: setting(hint, fields[name].default if not fields[name].required else None)
            for name, hint in hints.items()
        },
        "additionalProperties": False,
    }
    required = [name for name, field in fields.items() if field.required]
    return {**found, "required": required} if required else found


def setting(hint: Any, default: Any) -> dict[str, Any]:
    """Return the schema of one setting."""
    if get_origin(hint) is not Annotated:
        return section(hint)
    written = how_written(hint)
    described: dict[str, Any] = {"description": meaning(hint)}
    if "table" in written:
        return {**described, **table(hint)}
    if "rows" in written:
        struct = entry_type(hint)
        short = scalar(how_written(declared(struct)[written["rows"]])["read"])
        return {**described, "type": "array", "minItems": 1, "items": {"anyOf": [short, section(struct)]}}
    if "item" in written:
        described["default"] = list(default or ())
        return {**described, "type": "array", "items": scalar(written["item"])}
    text: Any = as_written(default, written["read"])
    if isinstance(default, int) and text == str(default):
        text = default  # a plain number is one to YAML, too
    return {**described, **scalar(written["read"]), **({"default": text} if text != "" else {})}


def table(hint: Any) -> dict[str, Any]:
    """Return the schema of a mapping by name."""
    written = how_written(hint)
    values = scalar(written["read"]) if "read" in written else section(entry_type(hint))
    names = {"pattern": f"^(?:{kind_of(written['table']).pattern})$"}
    return {"type": "object", "propertyNames": names, "additionalProperties": values}


def scalar(reader: Reader) -> dict[str, Any]:
    """Return the schema of a value that `reader` accepts, or of a placeholder for one."""
    kind = kind_of(reader)
    if getattr(reader, "choices", None):
        return {"anyOf": [{"enum": list(kind.examples)}, {"type": "string", "pattern": PLACEHOLDER}]}
    types = ["string"]
    numbers = ("20", "660")
    types += ["number"] if not kind.pattern or any(re.fullmatch(kind.pattern, one) for one in numbers) else []
    types += ["boolean"] if not kind.pattern or re.fullmatch(kind.pattern, "off") else []
    found: dict[str, Any] = {"type": types if types[1:] else "string", "examples": list(kind.examples)}
    return {**found, "pattern": f"^(?:{kind.pattern})$|{PLACEHOLDER}"} if kind.pattern else found


def meaning(hint: Any) -> str:
    """Return what a setting means."""
    return next(part.description for part in get_args(hint) if isinstance(part, msgspec.Meta)) or ""


# --- values as people write them --------------------------------------------------------------------


def as_written(value: Any, reader: Reader) -> str:
    """Return how a default is written: what `reader` reads as that value, or nothing if there is none."""
    if isinstance(value, RateOf | QuotaOf):
        return rate_as_written(value)
    if value is None or value == "" or isinstance(value, Secret) or value is msgspec.NODEFAULT:
        return "off" if value is None else ""
    if reader is read_duration:
        return duration_as_written(value)
    if reader is read_switch:
        return "on" if value else "off"
    if reader is read_share:
        return f"{value * 100:g}%"
    if reader is read_mode:
        return f"{value:04o}"
    if reader is read_size:
        return size_as_written(value)
    return str(value)


def duration_as_written(seconds: float) -> str:
    """Return seconds in the largest unit that divides them."""
    if not seconds:
        return "off"
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % length_s == 0:
            return f"{seconds / length_s:g}{unit}"
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"


def size_as_written(size: int) -> str:
    """Return bytes in the largest unit that divides them."""
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size % (1 << bits) == 0:
            return f"{size >> bits}{unit}"
    return str(size)


def rate_as_written(rate: RateOf | QuotaOf) -> str:
    """Return a rate or a quota, a number a time."""
    if isinstance(rate, QuotaOf):
        return f"{rate.units}/{rate.window}"
    return f"{rate.units}/{ {1.0: 's', 60.0: 'min', 3600.0: 'h'}.get(rate.period_s, 'day') }"
