"""What `make cluster` says: what it will take before it begins, that it goes on, and what to type.

What stands in the cache is not made again, so that the plan is of what is missing alone.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

EVERY_SECONDS: Final = 10.0
START_MINUTES: Final = 2
"""From all in the cache to a shell with an installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Something that is made once, on two cores."""

    what: str
    minutes: int
    gigabytes: float


def plan(missing: Collection[Work], packages: Collection[str], *, cache: str) -> str:
    """What will be done before there is a cluster, in lines for a person."""
    minutes = START_MINUTES + sum(work.minutes for work in missing)
    gigabytes = sum(work.gigabytes for work in missing)
    lines = [f"A cluster with BatchedModel: some {minutes} minutes on two cores until its shell."]
    if missing:
        lines.append(f"Made once, into {cache} (some {gigabytes:g} GB):")
        lines += [f"  {work.what}: {work.minutes} min, {work.gigabytes:g} GB" for work in missing]
    if packages:
        lines.append(f"Installed by apt-get, and left: {' '.join(sorted(packages))}")
    if not missing and not packages:
        lines.append("Everything is in the cache. An image whose code has changed is built again.")
    lines.append("Ctrl-C stops it. What is made by then is kept.")
    return "\n".join(lines)


def going_on(what: str, seconds: float) -> str:
    """A sign of life."""
    return f"  ... {what}, for {seconds:.0f} s"


INVITATION: Final = """\
The cluster is up, with BatchedModel installed. In this shell type, for example:
  kubectl apply --filename examples/minilm.yaml
  kubectl wait batchedmodel/minilm --for=condition=Ready --timeout=300s
  kubectl get batchedmodels
`exit` ends it, and with it a cluster that it started."""


@contextmanager
def telling(
    what: str, say: Callable[[str], None], *, every_seconds: float = EVERY_SECONDS
) -> Iterator[None]:
    """Says from time to time that the work in the block goes on, whatever it is silent about."""
    started, over = time.monotonic(), threading.Event()

    def tell() -> None:
        while not over.wait(every_seconds):
            say(going_on(what, time.monotonic() - started))

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
