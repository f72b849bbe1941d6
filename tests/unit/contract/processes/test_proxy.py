"""Which servers are reached by a proxy: as kubectl and all clients in Go do it."""

import pytest

from batchedmodel_contract.processes.proxy import proxy_to

_SERVICE = "https://10.96.0.1:443"
_PROXY = "http://proxy.example.com:3128"


@pytest.mark.parametrize(
    ("server", "no_proxy", "direct"),
    [
        (_SERVICE, "", False),
        (_SERVICE, "10.96.0.1", True),
        # Python's own rule knows no networks, and clusters list theirs so.
        (_SERVICE, "192.168.0.0/16, 10.96.0.0/12", True),
        (_SERVICE, "10.97.0.0/16,fd00::/8,.svc", False),
        ("https://[fd00::1]:443", "10.96.0.0/12,fd00::/8", True),
        ("https://api.team.example.com:6443", "example.com", True),
        ("https://api.team.example.com:6443", ".example.com", True),
        ("https://api.badexample.com", "example.com", False),
        ("https://api.team.example.com:6443", "*.EXAMPLE.com", True),
        ("https://api.example.com:6443", "api.example.com:6443", True),
        (_SERVICE, "10.96.0.1:443", True),
        ("https://[fd00::1]:443", "[fd00::1]:443", True),
        ("https://[fd00::1]:443", "fd00::2", False),
        (_SERVICE, "*", True),
        ("https://127.0.0.1:6443", "", True),
        ("https://[::1]:6443", "", True),
        ("https://localhost:6443", "", True),
        ("http://10.0.0.1:8001", "", False),
    ],
)
def test_a_proxy_is_passed_by_for_what_no_proxy_lists(
    server: str, no_proxy: str, direct: bool
) -> None:
    variables = {"HTTPS_PROXY": _PROXY, "NO_PROXY": no_proxy}
    none = direct or server.startswith("http:")
    assert (proxy_to(server, variables) is None) is none


def test_small_letters_and_an_address_without_a_scheme_do_as_well() -> None:
    variables = {"https_proxy": "proxy:3128", "no_proxy": "10.0.0.0/8"}
    assert proxy_to(_SERVICE, variables) is None
    assert proxy_to("https://api.example.com", variables) == "http://proxy:3128"


def test_a_server_without_tls_has_a_variable_of_its_own() -> None:
    variables = {"HTTP_PROXY": _PROXY, "HTTPS_PROXY": "http://other:3128"}
    assert proxy_to("http://hub.example", variables) == _PROXY
