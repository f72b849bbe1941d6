"""Memory that refused bodies leave behind in the sidecar, and the most that it ever held.

A sidecar without the collector of cycles, in front of a simulated model that generates texts. Each
kind of request (chat, completions, embeddings, infer) is sent in each form (plain, gzip, chunked)
with a body of 1.9 MB of which one field is wrong, by so many callers at once. What the kernel says
of the process before, one second after the last answer, and at its peak counts.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench_report import Figure, at_most
from support import refused_bodies
from support.chain import Chain, running_chain
from support.process_memory import forget_peak, peak_bytes, resident_bytes, shared_files

_COUNT: Final = 400
_QUICK_COUNT: Final = 24
_CALLERS: Final = 32
_MEBIBYTE: Final = 1 << 20
_SPARE: Final = 16.0
_BUDGET: Final = 256
_PEAK_SPARE: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """Of one kind and form, in MiB over what there was before."""

    name: str
    resident: float
    files: int
    peak: float


def figures(*, quick: bool, before: Path | None) -> list[Figure]:
    """The worst of all kinds and forms."""
    forms = refused_bodies.FORMS[:2] if quick else refused_bodies.FORMS
    left = asyncio.run(_measured(forms, _QUICK_COUNT if quick else _COUNT))
    resident = max(left, key=lambda one: one.resident)
    files = max(left, key=lambda one: one.files)
    peak = max(left, key=lambda one: one.peak)
    most = float(_BUDGET + _PEAK_SPARE)
    return [
        at_most(f"refused bodies: RSS left, {resident.name}", resident.resident, "MiB", _SPARE),
        at_most(f"refused bodies: memfds left, {files.name}", float(files.files), "", 0.0),
        at_most(f"refused bodies: peak over before, {peak.name}", peak.peak, "MiB", most),
    ]


async def _measured(forms: Sequence[str], count: int) -> list[_Left]:
    with tempfile.TemporaryDirectory() as folder:
        async with running_chain(
            Path(folder),
            handler="simulated",
            parameters={"generates": "true"},
            sidecar_module="support.uncollected_sidecar",
            max_queue_bytes=_BUDGET * _MEBIBYTE,
        ) as chain:
            return [
                await _sent(chain, f"{kind} {form}", path, body, form, count)
                for kind, (path, body) in refused_bodies.bodies().items()
                for form in forms
            ]


async def _sent(chain: Chain, name: str, path: str, body: bytes, form: str, count: int) -> _Left:
    pid = chain.sidecar.pid
    wire = refused_bodies.on_the_wire(path, body, form)
    before, files = resident_bytes(pid), len(shared_files(pid))
    forget_peak(pid)
    await refused_bodies.send(chain.port, wire, count=count, callers=_CALLERS)
    await asyncio.sleep(1.0)
    return _Left(
        name=name,
        resident=(resident_bytes(pid) - before) / _MEBIBYTE,
        files=len(shared_files(pid)) - files,
        peak=(peak_bytes(pid) - before) / _MEBIBYTE,
    )
