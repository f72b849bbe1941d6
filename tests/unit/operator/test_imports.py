"""The operator starts with its own libraries only."""

import subprocess
import sys

import pytest

_FOREIGN = ("torch", "transformers", "tokenizers", "numpy", "uvloop", "orjson", "prometheus_client")


@pytest.mark.slow
def test_no_other_process_brings_its_libraries_along() -> None:
    blocked = "".join(f"sys.modules[{name!r}] = None;" for name in _FOREIGN)
    program = f"import sys;{blocked}import batchedmodel_operator.__main__"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
