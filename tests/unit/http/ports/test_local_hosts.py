"""Whom a service for one machine answers: no page of another site, whatever name it came under."""

import socket

import pytest

from batchedmodel_http.ports.local_hosts import refused_locally


@pytest.mark.parametrize(
    ("host", "listening"),
    [
        ("127.0.0.1:8000", "127.0.0.1"),
        ("127.1.2.3", "127.0.0.1"),
        ("localhost:8000", "127.0.0.1"),
        ("LOCALHOST", "::1"),
        # A full name, which is the same host.
        ("localhost.", "127.0.0.1"),
        ("box.lan.:8000", "box.lan"),
        ("box.lan.:8000", "box.lan."),
        ("[::1]:8000", "127.0.0.1"),
        ("[::1]", "::1"),
        ("Box.lan:8000", "box.lan"),
        ("192.168.1.5:8000", "192.168.1.5"),
        ("192.168.1.5:8000", "0.0.0.0"),
        ("[fe80::1]:8000", "::"),
        (f"{socket.gethostname()}:8000", "::"),
        ("rebound.example:8000", ""),
    ],
)
def test_a_host_that_is_this_machine_is_answered(host: str, listening: str) -> None:
    assert refused_locally({"Host": host}, listening) is None
    origin = {"Host": host, "Origin": f"http://{host}"}
    assert refused_locally(origin, listening) is None


@pytest.mark.parametrize(
    ("host", "listening"),
    [
        ("rebound.example:8000", "127.0.0.1"),
        ("rebound.example", "0.0.0.0"),
        ("rebound.example", "::"),
        ("localhost.rebound.example", "127.0.0.1"),
        ("127.0.0.1.rebound.example", "127.0.0.1"),
        ("192.168.1.5:8000", "127.0.0.1"),
        ("", "127.0.0.1"),
        ("[::2]:8000", "::1"),
    ],
)
def test_another_host_is_refused_with_field_value_and_rule(host: str, listening: str) -> None:
    told = refused_locally({"Host": host}, listening)
    rule = f"is neither this machine's loopback nor {listening}, which is listened on"
    assert told == f'Host: "{host}" {rule}'


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:80001", ""]
)
def test_a_page_of_another_site_is_refused(origin: str) -> None:
    headers = {"Host": "127.0.0.1:8000", "Origin": origin}
    told = refused_locally(headers, "127.0.0.1")
    assert told == f'Origin: "{origin}" is not the request\'s Host, "127.0.0.1:8000"'
    assert refused_locally(headers, "") is None


def test_a_caller_that_is_no_browser_may_leave_both_out() -> None:
    assert refused_locally({}, "127.0.0.1") is None
