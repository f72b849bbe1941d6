"""A process may open what the kernel lets it, within reason, and never less than before."""

import resource

import pytest

from batchedmodel_contract.processes.descriptors import (
    MOST_DESCRIPTORS,
    raise_descriptors,
    wanted_descriptors,
)

ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1024, 4096, 4096),
        (1024, 1_048_576, MOST_DESCRIPTORS),
        (1024, ENDLESS, MOST_DESCRIPTORS),
        (100_000, 1_048_576, 100_000),
        (100_000, ENDLESS, 100_000),
        (ENDLESS, ENDLESS, ENDLESS),
    ],
)
def test_the_limit_is_raised_as_far_as_is_allowed_and_of_use(
    soft: int, hard: int, wanted: int
) -> None:
    assert wanted_descriptors(soft, hard) == wanted


def test_the_process_has_it_afterwards() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1000), hard))
    try:
        raised = raise_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, hard)
        assert raised == wanted_descriptors(1000, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
