"""The benchmark of the model server: what it takes from elsewhere, and what it draws."""

from model_server import ROWS, cases, malloc_settings
from support.repository import ROOT


def test_memory_is_kept_as_in_the_image() -> None:
    dockerfile = (ROOT / "model_server" / "Dockerfile").read_text("utf-8")
    assert f"GLIBC_TUNABLES={malloc_settings(dockerfile)}\n" in dockerfile
    assert malloc_settings("ENV A=1 \\\n    GLIBC_TUNABLES=glibc.a=1:glibc.b=2\n") == (
        "glibc.a=1:glibc.b=2"
    )


def test_a_quick_run_draws_one_batch_of_each_kind() -> None:
    for quick, full in zip(cases(draws=1), cases(draws=4), strict=True):
        assert len(quick.lengths) == 1
        assert all(len(lengths) == ROWS for lengths in (*quick.lengths, *full.lengths))
