"""Folders that look like checkpoints and hold no weights."""

import json
from pathlib import Path
from typing import Any


def folder_with(at: Path, *names: str, **config: Any) -> Path:
    """A folder with these files, empty, and this `config.json`, if any."""
    at.mkdir(parents=True, exist_ok=True)
    for name in names:
        (at / name).touch()
    if config:
        (at / "config.json").write_text(json.dumps(config), "utf-8")
    return at
