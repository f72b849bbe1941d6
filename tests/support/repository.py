"""Where things lie in the repository, for tests that read its files."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = (
    "contract",
    "scheduling",
    "http",
    "kube",
    "sidecar",
    "model_server",
    "operator",
    "autoscaler",
    "cli",
)
"""Each holds one package of ours: `batchedmodel_` and the folder's name."""
