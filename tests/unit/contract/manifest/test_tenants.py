"""Whose share a request uses: addresses, and names that trusted proxies give."""

import ipaddress
import re
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from batchedmodel_contract.manifest.batching import settings_from_json
from batchedmodel_contract.manifest.tenants import NETWORK, UNLISTED, TenantSettings, tenant_of
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.pod_settings import batch_settings
from support.examples import examples

PROXIED = TenantSettings(
    header="X-Tenant",
    weights={"search": 4.0, "ads": 1.0},
    trusted_proxies=("10.0.0.0/8", "2001:db8::/32"),
)
NAMED: Mapping[str, str] = CIMultiDict({"x-tenant": "search"})


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7", "10.0.0.1%eth0"])
def test_a_trusted_proxy_names_tenants(address: str) -> None:
    assert tenant_of(address, NAMED, PROXIED) == "search"


@pytest.mark.parametrize("address", ["11.0.0.1", "2001:db9::1", "", "no address"])
def test_nobody_else_does(address: str) -> None:
    assert tenant_of(address, NAMED, PROXIED) == tenant_of(address, {}, TenantSettings())


@pytest.mark.parametrize("headers", [{}, {"X-Tenant": ""}, {"X-Tenant": "a"}, {"X-Tenant": "b"}])
def test_tenants_that_no_list_names_share_one(headers: Mapping[str, str]) -> None:
    assert tenant_of("10.0.0.1", headers, PROXIED) == UNLISTED


def test_without_a_header_each_address_is_a_tenant() -> None:
    found = {tenant_of(f"10.0.0.{n}", NAMED, TenantSettings()) for n in range(5)}
    assert found == {f"10.0.0.{n}" for n in range(5)}


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_whoever_has_a_network_of_ipv6_has_one_share(site: int, one: int, other: int) -> None:
    first, second = (str(ipaddress.IPv6Address(site << 64 | host)) for host in (one, other))
    if ipaddress.IPv6Address(first).ipv4_mapped or ipaddress.IPv6Address(second).ipv4_mapped:
        return
    assert tenant_of(first, {}, TenantSettings()) == tenant_of(second, {}, TenantSettings())
    far = str(ipaddress.IPv6Address((site ^ 1) << 64 | other))
    assert tenant_of(first, {}, TenantSettings()) != tenant_of(far, {}, TenantSettings())


@given(st.ip_addresses().map(str))
def test_no_address_is_a_tenant_that_a_list_could_name_by_chance(address: str) -> None:
    assert tenant_of(address, {}, TenantSettings()) != UNLISTED


@settings(max_examples=examples(300))
@given(
    st.one_of(
        st.from_regex(rf"\A(?:{NETWORK.pattern})\Z", fullmatch=True),
        st.ip_addresses().map(str),
        st.text("0123456789abcf:./", max_size=40),
    )
)
def test_a_network_is_one_to_the_manifests_reader_and_to_the_sidecar(text: str) -> None:
    if re.fullmatch(NETWORK.pattern or "", text):
        ipaddress.ip_network(text, strict=False)
    elif "/" not in text and "." not in text.partition(":")[2]:
        with pytest.raises(ValueError, match=r"."):
            ipaddress.ip_network(text, strict=False)


def test_a_manifests_tenants_reach_the_sidecar_by_its_settings_file() -> None:
    batching = {
        "tenants": {"header": "X-Tenant", "weights": {"search": 4, "ads": 1}, "maxShare": 0.5},
        "trustedProxies": ["10.0.0.0/8"],
    }
    manifest = {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "m"},
        "spec": {"model": {"handler": "simulated"}, "batching": batching},
    }
    there = batch_settings(read_manifest(manifest).spec)
    read = settings_from_json(there.to_json())
    assert read == there
    assert read.tenants == TenantSettings(
        header="X-Tenant",
        weights={"search": 4.0, "ads": 1.0},
        max_share=0.5,
        trusted_proxies=("10.0.0.0/8",),
    )
