"""Files that settings name, such as those that say who may ask.

Whoever can write a file of keys can let himself in, so one that others than its owner can write is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from relayd.readers import Remark, refusal

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
RELATIVE = "a relative path in a settings file begins where that lies"


def read_plain(setting: str, path: str, largest: int) -> tuple[bytes, int]:
    """Return the bytes and the mode of the file at `path`, which `setting` names.  Waits for nobody.

    Raises:
        SettingError: it cannot be read, is no plain file or too large.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(largest + 1) if stat.S_ISREG(mode) else b""
    except IsADirectoryError:
        mode = stat.S_IFDIR
    except (OSError, ValueError) as error:
        hint = RELATIVE if isinstance(error, FileNotFoundError) else ""
        raise refusal(Remark(setting, f"it cannot be read: {why_not(error)}", hint, path)) from None
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a plain file"
        raise refusal(Remark(setting, f"it is {kind}", "name a file", path))
    if len(data) > largest:
        raise refusal(
            Remark(setting, f"it is larger than {largest >> 10} KiB", "is it the right file?", path)
        )
    return data, mode


def read_file(setting: str, path: str, largest: int) -> bytes:
    """Return the bytes of the file at `path`, which `setting` names and which says who may ask.

    Raises:
        SettingError: it cannot be read, is no plain file or too large, or others can write it.
    """
    data, mode = read_plain(setting, path, largest)
    if mode & OTHERS_WRITE:
        message = "it can be written by others than its owner, who could let themselves in"
        raise refusal(Remark(setting, message, "chmod go-w it", path))
    return data


def remarks_on_readers(setting: str, path: str) -> Iterator[Remark]:
    """Yield what is to be said if everybody can read a file that is for few."""
    if is_world_readable(path):
        yield Remark(setting, "everybody on this machine can read it", "chmod o-r it", path)


def is_world_readable(path: str) -> bool:
    """True if everybody on this machine can read the file."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except (OSError, ValueError):
        return False


def why_not(error: OSError | ValueError) -> str:
    """Return why a file could not be opened, in a few words."""
    return (error.strerror or type(error).__name__).lower() if isinstance(error, OSError) else str(error)
