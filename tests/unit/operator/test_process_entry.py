"""What the operator's process sees to before it begins."""

import resource

import pytest

from batchedmodel_contract.processes.descriptors import wanted_descriptors
from batchedmodel_operator import __main__ as entry
from batchedmodel_operator.settings import OperatorSettings


def test_it_may_open_what_the_kernel_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 256 descriptors a crowd at its port for probes left none for its own connections."""
    seen = []

    async def run(settings: OperatorSettings) -> None:
        seen.append(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    monkeypatch.setattr(entry, "_run", run)
    monkeypatch.setenv("BATCHEDMODEL_NAMESPACE", "here")
    monkeypatch.setenv("BATCHEDMODEL_SIDECAR_IMAGE", "a")
    monkeypatch.setenv("BATCHEDMODEL_MODEL_SERVER_IMAGE", "b")
    before = _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert entry.main() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert seen == [wanted_descriptors(256, hard)]
