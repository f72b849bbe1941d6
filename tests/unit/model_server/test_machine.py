"""What the kernel says of a container's limits, and what follows for the number of threads."""

from pathlib import Path

import pytest

from batchedmodel_model_server import machine
from batchedmodel_model_server.machine import (
    KERNEL_CACHES,
    THREADS,
    Processor,
    bound_libraries,
    device_name,
    read_processor,
)

XEON = """processor : 0
model name : Some Xeon
flags : fpu avx512f {more}

processor : 1
model name : Some Xeon
flags : fpu avx512f {more}
"""


def own_group(folder: Path, line: str) -> Path:
    own = folder / "own"
    own.write_text(line)
    return own


def test_the_limits_of_every_group_around_the_process_are_read(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    inner = groups / "kubepods" / "pod"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("1000\n")
    (inner.parent / "memory.max").write_text("max\n")
    (tmp_path / "memory.max").write_text("outside\n")
    own = own_group(tmp_path, "0::/kubepods/pod\n")
    assert machine.limits("memory.max", groups, own) == ("1000", "max")


def test_a_container_that_sees_itself_as_the_root_has_the_limits_there(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    own = own_group(tmp_path, "0::/\n")
    assert machine.limits("cpu.max", tmp_path, own) == ("200000 100000",)


def test_beside_version_1_the_line_of_version_2_is_found(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "memory.max").write_text("7")
    own = own_group(tmp_path, "12:memory:/docker/abc\n1:name=systemd:/x\n0::/inner\n")
    assert machine.limits("memory.max", tmp_path, own) == ("7",)


def test_version_1_alone_has_no_limit_that_is_known(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    (groups / "memory" / "docker").mkdir(parents=True)
    (groups / "memory" / "docker" / "memory.limit_in_bytes").write_text("1000")
    own = own_group(tmp_path, "5:memory:/docker\n4:cpu,cpuacct:/docker\n")
    assert machine.limits("memory.max", groups, own) == ()
    assert machine.limits("cpu.max", groups, own) == ()


def test_where_there_are_no_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert machine.limits("cpu.max", tmp_path / "none", tmp_path / "neither") == ()


@pytest.mark.parametrize(
    ("limits", "quota", "threads"),
    [
        ([], None, 64),
        (["max 100000"], None, 64),
        (["200000 100000"], 2.0, 2),
        (["350000 100000"], 3.5, 3),
        (["50000 100000"], 0.5, 1),
        (["6400000 50000"], 128.0, 64),
        (["max 100000", "400000 100000", "800000 100000"], 4.0, 4),
        (["400000 0"], None, 64),
        (["", "400000", "-1 100000", "four hundred"], None, 64),
    ],
)
def test_there_are_as_many_threads_as_the_quota_lets_compute_all_the_time(
    tmp_path: Path, limits: list[str], quota: float | None, threads: int
) -> None:
    processor = read_processor(cores=64, quotas=limits, description=tmp_path / "none")
    assert (processor.quota, processor.threads) == (quota, threads)


@pytest.mark.parametrize(("more", "has"), [("", False), ("avx512_bf16", True), ("amx_bf16", True)])
def test_a_processor_says_whether_it_computes_in_bfloat16(
    tmp_path: Path, more: str, has: bool
) -> None:
    description = tmp_path / "cpuinfo"
    description.write_text(XEON.format(more=more))
    processor = read_processor(cores=2, quotas=(), description=description)
    assert (processor.name, processor.bfloat16) == ("Some Xeon", has)


def test_an_arm_processor_is_known_by_its_part(tmp_path: Path) -> None:
    description = tmp_path / "cpuinfo"
    description.write_text("processor : 0\nFeatures : fp asimd bf16\nCPU part : 0xd40\n")
    processor = read_processor(cores=2, quotas=(), description=description)
    assert (processor.name, processor.bfloat16) == ("0xd40", True)


def test_a_processor_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    processor = read_processor(cores=2, quotas=(), description=tmp_path / "none")
    assert (processor.name, processor.bfloat16) == ("unknown", False)


def test_libraries_are_bounded_unless_the_manifest_bounds_them() -> None:
    processor = Processor(name="Xeon", cores=64, quota=3.5, bfloat16=False)
    by_default: dict[str, str] = {}
    bound_libraries(processor, by_default)
    by_manifest = {THREADS: "8", "LRU_CACHE_CAPACITY": "1024"}
    bound_libraries(processor, by_manifest)
    assert by_default == {THREADS: "3", **dict.fromkeys(KERNEL_CACHES, "64")}
    assert by_manifest == {**by_default, THREADS: "8", "LRU_CACHE_CAPACITY": "1024"}


def test_a_device_of_another_quota_is_another_device() -> None:
    bounded = Processor(name="Xeon", cores=64, quota=3.5, bfloat16=False)
    free = Processor(name="Xeon", cores=64, quota=None, bfloat16=False)
    assert device_name("host", bounded) == "host: Xeon, 3.5 cores"
    assert device_name("host", free) == "host: Xeon, 64 cores"
