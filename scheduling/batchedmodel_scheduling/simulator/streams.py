"""Random numbers by name: each concern of a simulation draws from a stream of its own.

Arrivals, lengths, noise and stragglers never share a stream, so another policy, which makes other
batches and so other draws of noise, still meets exactly the same requests.
"""

from hashlib import sha256

from numpy.random import PCG64, Generator


def stream(seed: int, name: str) -> Generator:
    """The stream of this name: equal arguments give equal numbers on every machine."""
    digest = sha256(f"{seed}\n{name}".encode()).digest()
    # The bit generator is named, because the default one may change with the library.
    return Generator(PCG64(int.from_bytes(digest, "big")))
