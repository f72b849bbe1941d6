"""The model of examples/adapters.yaml as a package: trained when it is first asked for.

The checkpoint lies in the cache folder, under a name that follows from what made it.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent


def get_model_path() -> str:
    """The folder of the checkpoint, which is made where there is none yet."""
    made_of = [(HERE / name).read_bytes() for name in ("train.py", "conversations.txt")]
    made_by = [version(name).encode() for name in ("torch", "transformers", "tokenizers")]
    digest = hashlib.sha256(b"\0".join([*made_of, *made_by])).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "batchedmodel")
    folder = cache / "examples" / f"base-{digest}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        print("training a model that knows a few answers; this takes a minute", flush=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            # A process of its own: neither its threads nor its memory are the model server's.
            subprocess.run([sys.executable, HERE / "train.py", f"{made}/model"], check=True)
            with suppress(OSError):  # another process was faster
                Path(made, "model").rename(folder)
    return str(folder)
