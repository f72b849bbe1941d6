"""The model of examples/adapters.yaml, and the adapters beside it.

All are trained when they are first asked for, and lie in the cache folder.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from examples.adapters import base

HERE = Path(__file__).parent


def get_model_path() -> str:
    """The folder of the checkpoint; the adapters are there then as well."""
    adapters()
    return base.get_model_path()


def adapters() -> Path:
    """The folder with a folder for each adapter, which is made where there is none yet."""
    model = base.get_model_path()
    made_of = [(HERE / "train.py").read_bytes(), model.encode(), version("peft").encode()]
    digest = hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]
    folder = Path(model).with_name(f"adapters-{digest}")
    if not folder.is_dir():
        print("training two adapters; this takes some seconds", flush=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            train = (sys.executable, "-W", "ignore", "-m", "examples.adapters.train")
            root = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
            subprocess.run([*train, model, f"{made}/adapters"], check=True, env=root)
            with suppress(OSError):  # another process was faster
                Path(made, "adapters").rename(folder)
    return folder
