"""What the machine and the container allow this process: memory, threads, arithmetic, accelerators.

Left alone, torch starts a thread for each core of the node. In a container that may use two of 64
these take turns within the quota, and every operator waits for the last of them. So the number of
threads is set at the start of the process, before torch is imported: OpenMP reads its variable only
then.
"""

import logging
import os
import sys
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batchedmodel_contract.link.model_state import ON_THE_CPU
from batchedmodel_contract.processes.environment import AcceleratorNeed
from batchedmodel_model_server.errors import CannotLoad

THREADS: Final = "OMP_NUM_THREADS"
KERNEL_CACHES: Final = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
_KERNELS: Final = 64
"""oneDNN makes a kernel for each shape that it multiplies. It and the layer that torch has above it
keep 1,024 each by default. Steps and packed batches have ever new shapes: 1,300 of them took 1 to
2.3 GiB, and take less than 0.2 so. Passes take as long."""
CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")
_UNIFIED: Final = "0::/"  # begins the line of version 2; in a container nothing follows
_PROCESSOR: Final = Path("/proc/cpuinfo")
_BFLOAT16: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Of x86, and of Arm."""
_log = logging.getLogger(__name__)


def limits(name: str, cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> tuple[str, ...]:
    """What the cgroup files (version 2) of this name hold, in the own group and in those around it.

    All of them bind. Empty where there is no such controller.
    """
    lines = text_of(own).splitlines()
    inner = next((line[len(_UNIFIED) :] for line in lines if line.startswith(_UNIFIED)), "")
    folder = cgroups / inner
    within = [each for each in (folder, *folder.parents) if each.is_relative_to(cgroups)]
    return tuple(found for each in within if (found := text_of(each / name)))


def text_of(file: Path) -> str:
    """What a file of the kernel holds; nothing if it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The node's processor, as one process may use it."""

    name: str
    cores: int
    """That the scheduler may put this process on."""
    quota: float | None
    """How many of them it may keep busy on average; None without a bound."""
    bfloat16: bool
    """Whether it has instructions for that."""

    @property
    def threads(self) -> int:
        """How many threads can compute all the time.

        Rounded down: threads that exceed the quota are stopped, and all others wait for them.
        """
        return self.cores if self.quota is None else max(1, min(self.cores, int(self.quota)))


def read_processor(
    *, cores: int | None = None, quotas: Iterable[str] | None = None, description: Path = _PROCESSOR
) -> Processor:
    """The processor as Linux describes it; what it does not say counts as unbounded or absent."""
    lines = text_of(description).splitlines()
    flags = _values(lines, ("flags", "Features"))
    return Processor(
        name=next(iter(_values(lines, ("model name", "CPU part"))), "unknown"),
        cores=len(os.sched_getaffinity(0)) if cores is None else cores,
        quota=_quota(limits("cpu.max") if quotas is None else quotas),
        bfloat16=any(_BFLOAT16 & set(value.split()) for value in flags[:1]),
    )


def bound_libraries(processor: Processor, environ: MutableMapping[str, str]) -> None:
    """Bound what the libraries start and keep, unless the manifest's `env` does."""
    environ[THREADS] = environ.get(THREADS) or str(processor.threads)
    for cache in KERNEL_CACHES:
        environ[cache] = environ.get(cache) or str(_KERNELS)
    quota = "no quota" if processor.quota is None else f"a quota of {processor.quota:.4g}"
    has = "with" if processor.bfloat16 else "without"
    machine = f"{processor.name}, {processor.cores} cores, {quota}, {has} bfloat16"
    _log.info("%s: computing with %s threads", machine, environ[THREADS])


def bound_operators() -> None:
    """Let torch, once it is imported, run one operator at a time, as passes come one at a time.

    The threads within operators follow from the variable: `torch.set_num_threads` would bind
    OpenMP's only in the thread that calls it.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.get_num_interop_threads() == 1:
        return
    try:
        torch.set_num_interop_threads(1)
    except RuntimeError as error:
        _log.info("the threads between operators are left as they are: %s", error)


def computing_threads() -> int:
    """How many threads share an operator; 0 where torch is not used."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else int(torch.get_num_threads())


def device_name(device: str, processor: Processor) -> str:
    """What is computed on, in words that tell one kind of device from another."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return f"{device}: {processor.name}, {processor.quota or processor.cores:.4g} cores"
    properties = torch.cuda.get_device_properties(device)
    return f"{device}: {properties.name}, {properties.total_memory} bytes"


def require_accelerator(need: AcceleratorNeed, device: str) -> None:
    """Raise `CannotLoad` where one is required and the device is the CPU.

    Where it is only wanted, the log says so.
    """
    if need is AcceleratorNeed.NONE or device != "cpu":
        return
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        why = f"torch {torch.__version__} is built for CPUs only"
    else:
        why = f"no device is visible to torch {torch.__version__} in this container"
    lack = f"spec.accelerator asks for an accelerator, and torch finds none: {why}"
    if need is AcceleratorNeed.REQUIRED:
        raise CannotLoad(
            f"{lack}; it would compute on the CPU, many times slower. A handler that is to do so "
            "says it by device()"
        )
    _log.error("%s: %s", ON_THE_CPU, lack)


def _quota(maxima: Iterable[str]) -> float | None:
    """The least of the limits, in cores."""
    quotas: list[float] = []
    for limit in maxima:
        # Two numbers of microseconds, the first of which may be the word max.
        quota, _, period = limit.partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _values(lines: Iterable[str], fields: tuple[str, ...]) -> list[str]:
    split = (line.partition(":") for line in lines)
    return [value.strip() for field, _, value in split if field.strip() in fields]
