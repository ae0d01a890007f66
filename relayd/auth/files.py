"""Files that say who may ask.

Whoever can write such a file can let himself in, so one that others than its owner can write is refused.
"""

from __future__ import annotations

import os
import stat

from relayd.readers import SettingError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read_file(setting: str, path: str, largest: int) -> bytes:
    """Return the bytes of the file at `path`, which `setting` names.

    Raises:
        SettingError: it cannot be read, is no plain file or too large, or others can write it.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise SettingError(f"{setting}: {path} is not a plain file")
            if mode & OTHERS_WRITE:
                raise SettingError(
                    f"{setting}: {path} can be written by others than its owner, who could let "
                    f"themselves in: chmod go-w {path}"
                )
            data = file.read(largest + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, SettingError):
            raise
        raise SettingError(f"{setting}: {path}: {why_not(error)}") from None
    if len(data) > largest:
        raise SettingError(f"{setting}: {path} is larger than {largest >> 10} KiB")
    return data


def is_world_readable(path: str) -> bool:
    """True if everybody on this machine can read the file."""
    return bool(os.stat(path).st_mode & stat.S_IROTH)


def why_not(error: OSError | ValueError) -> str:
    """Return why a file could not be opened, in a few words."""
    return (error.strerror or type(error).__name__).lower() if isinstance(error, OSError) else str(error)
