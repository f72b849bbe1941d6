"""A language model in the closed loop: prompts and answers as long as those of Azure's trace.

Used by `autoscaling`. The engine is about a model of 70 billion weights: 32 sequences at 46 ms a
step, 0.17 s for a prompt of usual length. Its pods take three minutes to start.
"""

from functools import cache
from pathlib import Path
from typing import Final

from autoscaling_loop.text_pods import TextDevice
from batchedmodel_cli.simulator.token_engine import EngineFigures
from batchedmodel_cli.simulator.traces import read_trace
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_kube.manifest.generation import Generation
from batchedmodel_kube.manifest.pod_settings import batch_settings
from batchedmodel_kube.manifest.spec import Model, Spec

STARTUP_SECONDS: Final = 180.0
_TRACE: Final = Path(__file__).parent / "data" / "azure_conversation.csv"
_ENGINE: Final = EngineFigures(
    sequences=32,
    step_seconds=0.040,
    sequence_seconds=0.0002,
    prefill_seconds_per_token=150e-6,
)


@cache
def text_device(*, limited: bool) -> TextDevice:
    """The engine; `limited`: the manifest says how many it runs at once, else that is learnt."""
    trace = read_trace(_TRACE.read_text(encoding="utf-8"))
    if trace.outputs is None:
        raise ValueError(f"{_TRACE}: has no column output")
    generation = Generation(
        max_concurrent_requests=_ENGINE.sequences if limited else None,
        target_first_token_milliseconds=3000,
        target_token_milliseconds=100,
    )
    model = Model(protocol=ServerProtocol.OPENAI, image="engine", port=8080)
    return TextDevice(
        engine=_ENGINE,
        settings=batch_settings(Spec(model=model, generation=generation)),
        lengths=tuple(zip(trace.lengths, trace.outputs, strict=True)),
    )
