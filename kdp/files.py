"""Files are written to a temporary name and renamed, so that nothing is ever half there."""

from __future__ import annotations

import contextlib
import os
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
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot write {path}: {reason}. Free the disk or choose another folder.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
