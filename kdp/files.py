"""Files are written to a temporary name and renamed, so that nothing is ever half there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kdp.errors import UserError


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary name to write to; it takes `path`'s place when all went well, and is gone when not."""
    path = Path(path).expanduser()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # HDF5 and safetensors report a full disk as a RuntimeError
        raise UserError(f"cannot write {path} ({reason(error)}). Try another folder or disk.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """The same for a folder: the old one is moved aside first, and comes back if the new one cannot take its place."""
    temporary, old = (path.with_name(f".{path.name}.{os.getpid()}.{end}") for end in ("tmp", "old.tmp"))
    new_parent = not path.parent.exists()
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        raise UserError(f"cannot write {path} ({reason(error)}). Try another folder or disk.") from error
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        for leftover in (temporary, old):
            shutil.rmtree(leftover, ignore_errors=True)
        if new_parent and not path.exists():
            with contextlib.suppress(OSError):
                path.parent.rmdir()


def check_room(folder: Path, size: int) -> None:
    """An OSError unless `size` bytes can be written: HDF5 itself crashes on a full disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(-(-size // 2**20)):
            file.write(bytes(2**20))


def reason(error: BaseException) -> str:
    """Why, for the middle of a sentence: in the system's words, else the first line of the message."""
    if isinstance(error, OSError) and error.errno:
        return error.strerror if error.errno < 0 and error.strerror else os.strerror(error.errno)  # < 0: of look-ups
    within = re.search(r"error message = '([^']+)'", str(error))  # HDF5's way to quote the system
    lines = str(error).strip().splitlines()
    return within.group(1) if within else lines[0].rstrip(".") if lines else type(error).__name__
