"""What an exception out of a forward pass means."""

import pytest

from batchedmodel_model_server.errors import DeviceLost, ForwardFailed, OutOfMemory, translated


class Wordless(Exception):
    """One that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("bad"), ForwardFailed),
        (SystemExit(3), ForwardFailed),
        (MemoryError(), OutOfMemory),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] . can't allocate memory: you tried"),
            OutOfMemory,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), OutOfMemory),
        (ValueError("can't allocate memory is no word of ours"), ForwardFailed),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ForwardFailed),
    ],
)
def test_an_exception_is_told_apart_by_its_kind_and_words(
    error: BaseException, kind: type[ForwardFailed]
) -> None:
    failure = translated(error)
    assert type(failure) is kind
    assert type(error).__name__ in str(failure)


def test_an_exception_without_words_is_a_failure_like_another() -> None:
    assert str(translated(Wordless())) == (
        "the model failed: Wordless, whose own text cannot be had (ValueError)"
    )


def test_what_an_exception_says_is_told_and_logged_within_bounds() -> None:
    failure = translated(RuntimeError("m" * 1_000_000))
    assert len(str(failure)) <= 500
    assert len(failure.trace) < 20_000


@pytest.mark.torch
def test_the_exceptions_of_torch_are_known() -> None:
    import torch

    assert type(translated(torch.OutOfMemoryError("CUDA out of memory"))) is OutOfMemory
    lost = torch.AcceleratorError("CUDA error: device-side assert triggered")
    assert type(translated(lost)) is DeviceLost
    refused = torch.AcceleratorError("CUDA error: out of memory")
    assert type(translated(refused)) is OutOfMemory, "the driver has none left, the device works"


@pytest.mark.torch
def test_the_allocator_of_the_cpu_says_what_is_expected_of_it() -> None:
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert type(translated(caught.value)) is OutOfMemory


def test_the_place_of_the_fault_is_kept_for_the_log_and_nothing_of_its_frames() -> None:
    try:
        raise ValueError("x" * 2000)
    except ValueError as error:
        failure = translated(error)
    assert "test_errors.py" in failure.trace
    assert failure.__cause__ is None
    assert failure.__context__ is None
    assert len(str(failure)) < 600
