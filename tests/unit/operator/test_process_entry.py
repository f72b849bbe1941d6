"""What the operator's process sees to before it begins."""

import logging
import resource

import pytest

from batchedmodel_contract.processes import logs
from batchedmodel_contract.processes.listening import wanted_descriptors
from batchedmodel_operator import __main__ as entry
from batchedmodel_operator.settings import OperatorSettings


def test_it_may_open_what_the_kernel_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 256 descriptors a crowd at its port for probes left none for its own connections."""
    seen = []

    async def run(settings: OperatorSettings) -> None:
        seen.append(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    monkeypatch.setattr(entry, "_run", run)
    _configured(monkeypatch)
    before = _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert entry.main() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert seen == [wanted_descriptors(256, hard)]


@pytest.mark.parametrize(("policy", "warnings"), [("true", 0), ("false", 1), (None, 1)])
def test_it_warns_once_where_no_policy_bounds_its_account(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    policy: str | None,
    warnings: int,
) -> None:
    """Who switched the policies off learnt nowhere what a thief of the token may do then."""

    async def run(settings: OperatorSettings) -> None:
        pass

    monkeypatch.setattr(entry, "_run", run)
    monkeypatch.setattr(logs, "configure", lambda *words: None)
    _configured(monkeypatch)
    if policy is not None:
        monkeypatch.setenv("BATCHEDMODEL_ADMISSION_POLICY", policy)
    with caplog.at_level(logging.WARNING):
        assert entry.main() == 0
    assert len(caplog.messages) == warnings
    assert all("admission policy" in message for message in caplog.messages)


def _configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHEDMODEL_NAMESPACE", "here")
    monkeypatch.setenv("BATCHEDMODEL_SIDECAR_IMAGE", "a")
    monkeypatch.setenv("BATCHEDMODEL_MODEL_SERVER_IMAGE", "b")
