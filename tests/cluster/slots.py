"""Numbered places on this machine for clusters that run at the same time.

Names and addresses of everything that a cluster makes follow from its slot's number, so that what
a killed one has left behind can be found without any record of it.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.errors import Unavailable
from cluster.networks import Families, Network

SLOTS = range(16)


@dataclass(frozen=True, slots=True)
class Slot:
    """One place for a cluster with addresses of these families."""

    number: int
    families: Families = Families.IPV4

    @property
    def networks(self) -> tuple[Network, ...]:
        """Of each family, the cluster's first one in front."""
        return tuple(Network(slot=self.number, version=one) for one in self.families.value)

    @property
    def first(self) -> Network:
        """Where one address has to do."""
        return self.networks[0]

    @property
    def interface(self) -> str:
        """This machine's end of the cable into the cluster."""
        return f"batchedmodel{self.number}"

    @property
    def cgroup(self) -> str:
        """Parent of all pods' control groups, in every hierarchy."""
        return f"batchedmodel-test-{self.number}"


@contextmanager
def claimed_slot(families: Families) -> Iterator[Slot]:
    """Holds the first free slot until the block ends or this process does.

    Raises:
        Unavailable: all slots are taken.
    """
    with _first_free("cluster") as number:
        yield Slot(number, families)


@contextmanager
def claimed_image_store() -> Iterator[int]:
    """Holds the first free one of containerd's image stores: its number.

    Apart from slots, for a control plane that was started first would otherwise leave the next
    cluster with another store, into which gigabytes of images are imported anew.
    """
    with _first_free("images") as number:
        yield number


@contextmanager
def claimed_if_free(number: int) -> Iterator[Slot | None]:
    """Holds the slot `number`, or gives None while somebody else does."""
    with socket.socket(socket.AF_UNIX) as claim:
        yield Slot(number) if _claim(claim, "cluster", number) else None


@contextmanager
def _first_free(kind: str) -> Iterator[int]:
    for number in SLOTS:
        with socket.socket(socket.AF_UNIX) as claim:
            if _claim(claim, kind, number):
                yield number
                return
    raise Unavailable(f"all {len(SLOTS)} places for test clusters are in use")


def _claim(claim: socket.socket, kind: str, number: int) -> bool:
    # A name in the abstract namespace belongs to one process of a network namespace, which is what
    # the interfaces and routes belong to, and the kernel frees it however the process ends.
    try:
        claim.bind(f"\0batchedmodel-test-{kind}-{number}")
    except OSError:
        return False
    return True
