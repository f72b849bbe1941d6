"""What a simulated device needs: no torch, no transformers, no hub."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_simulated_handler_runs_where_torch_cannot_be_imported() -> None:
    code = """
import sys

import pytest
for name in ("torch", "transformers", "safetensors", "tokenizers", "huggingface_hub"):
    sys.modules[name] = None
import batchedmodel_model_server.__main__
from batchedmodel_contract.processes.environment import ModelServerSettings
from batchedmodel_model_server.lifecycle.service import load
from batchedmodel_model_server.execution.memory import MemoryCap
from batchedmodel_model_server.profiling.warmup import WarmUp
settings = ModelServerSettings(
    model_name="m", model_socket="/none", handler="simulated", cache_folder="/none"
)
warm_up = WarmUp(load(settings, None), 32, MemoryCap())
warm_up.begin()
assert warm_up.profile().points
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
