"""Files of a run: safetensors and JSON, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kdp.errors import UserError
from kdp.files import replacing

FORMAT = "kdp-3"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """One safetensors file; `about` is kept as JSON in its header."""
    header = {"format": FORMAT, "about": json.dumps(about)}
    contiguous = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    with replacing(path) as temporary:
        save_file(contiguous, temporary, metadata=header)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and what was said about them."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; a run folder holds one after `kdp train`.")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise UserError(f"{path} is not a checkpoint of kdp (format {header.get('format')!r}, not {FORMAT!r}).")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(header["about"])  # noqa: SIM118
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path} cannot be read as a checkpoint, it may be truncated ({error}).") from error


def save_json(path: Path, value: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


def load_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}).") from error
