"""What requests and a model's `generation_config.json` may both say of how tokens are chosen."""

from collections.abc import Mapping
from typing import Final

from batchedmodel_contract.schema.rules import Real, Whole

MAX_TOKENS: Final = Whole(minimum=1, maximum=10_000_000)
SAMPLING_RULES: Final[Mapping[str, Real | Whole]] = {
    "temperature": Real(minimum=0.0, maximum=100.0),
    "top_p": Real(minimum=1e-6, maximum=1.0),
    "top_k": Whole(minimum=-1, maximum=10_000_000),
    "min_p": Real(minimum=0.0, maximum=1.0),
    "repetition_penalty": Real(minimum=0.01, maximum=100.0),
}
