"""What most simulations are given."""

import json
from pathlib import Path

import pytest

from support.simulate_command import PROFILE, written


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return written(tmp_path, "targetLatencyMilliseconds: 50")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE.to_mapping()), "utf-8")
    return file
