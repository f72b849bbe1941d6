"""How many files and connections a process may have open."""

import resource
from typing import Final

MOST_DESCRIPTORS: Final = 65_536


def raise_descriptors() -> int:
    """Raise the limit of open files as far as allowed; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted_descriptors(soft, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return MOST_DESCRIPTORS if wanted == resource.RLIM_INFINITY else wanted


def wanted_descriptors(soft: int, hard: int) -> int:
    """The soft limit to ask for, by the present ones; never a lower one than now."""
    if resource.RLIM_INFINITY in (soft, hard):
        return soft if soft == resource.RLIM_INFINITY else max(soft, MOST_DESCRIPTORS)
    return max(soft, min(hard, MOST_DESCRIPTORS))
