"""One port for callers of both address families."""

import errno
import resource
import socket

import pytest

from batchedmodel_contract.processes.listening import (
    EVERY_ADDRESS,
    MOST_DESCRIPTORS,
    authority,
    bound_socket,
    raise_descriptors,
    reachable,
    wanted_descriptors,
)

BOTH = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@BOTH
@pytest.mark.parametrize(
    ("host", "four", "six"),
    [(EVERY_ADDRESS, True, True), ("127.0.0.1", True, False), ("::1", False, True)],
)
def test_every_address_takes_callers_of_both_families_and_one_address_its_own(
    host: str, four: bool, six: bool
) -> None:
    with bound_socket(host, 0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        assert (_answers("127.0.0.1", port), _answers("::1", port)) == (four, six)


class NoIPv6(socket.socket):
    """As a kernel without IPv6 has them."""

    def __init__(self, family: int, kind: int) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, kind)


def test_without_ipv6_every_address_is_every_one_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", NoIPv6)
    with bound_socket(EVERY_ADDRESS, 0) as bound:
        assert bound.getsockname()[0] == "0.0.0.0"


@pytest.mark.parametrize("host", [EVERY_ADDRESS, "127.0.0.1"])
def test_a_port_that_is_taken_is_no_missing_family(host: str) -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            bound_socket(host, taken.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.1", "10.0.0.1:80"),
        ("fd00::1", "[fd00::1]:80"),
        ("m.team.svc", "m.team.svc:80"),
    ],
)
def test_an_ipv6_address_stands_in_brackets(host: str, expected: str) -> None:
    assert authority(host, 80) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [("::", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("fd00::1", "fd00::1"), ("box", "box")],
)
def test_who_listens_everywhere_is_reached_on_this_machine(host: str, expected: str) -> None:
    assert reachable(host) == expected


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
