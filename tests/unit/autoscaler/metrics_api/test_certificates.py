"""The autoscaler's own certificates: believed by a strict client, and changed without a gap."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest

from batchedmodel_autoscaler.metrics_api.certificates import (
    LIFETIME,
    MOST_AUTHORITIES,
    RENEWED_AFTER,
    Identity,
    Rotation,
    bundle_with,
    holds,
    make_identity,
    server_context,
)

NAME = "batchedmodel-autoscaler.batchedmodel.svc"
NOW = datetime.now(tz=UTC)


def shaken_hands(identity: Identity, bundle: bytes, name: str = NAME) -> None:
    """One handshake in memory with a client as strict as they come; raises `ssl.SSLError`."""
    client = ssl.create_default_context(cadata=bundle.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname=name)
    there = server_context(identity, "").wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for side in {here, there} - done:
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue


def test_a_strict_client_believes_the_certificate() -> None:
    identity = make_identity([NAME], NOW)
    shaken_hands(identity, identity.authority)


def test_nobody_believes_it_under_another_name_or_another_authority() -> None:
    identity, other = make_identity([NAME], NOW), make_identity([NAME], NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shaken_hands(identity, identity.authority, "elsewhere.batchedmodel.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"signature|issuer"):
        shaken_hands(identity, other.authority)


def test_a_bundle_may_hold_the_authorities_of_two_processes() -> None:
    old, new = make_identity([NAME], NOW), make_identity([NAME], NOW)
    bundle = bundle_with(old.authority, [new.authority], NOW)
    shaken_hands(old, bundle)
    shaken_hands(new, bundle)


def test_a_very_long_service_name_fits() -> None:
    long = f"{'s' * 63}.{'n' * 63}.svc"
    identity = make_identity([long], NOW)
    shaken_hands(identity, identity.authority, long)


def test_a_bundle_that_is_right_stays_as_it_is() -> None:
    own = make_identity([NAME], NOW).authority
    bundle = bundle_with(b"", [own], NOW)
    assert bundle_with(bundle + b"\n", [own], NOW) == bundle + b"\n"


def test_a_bundle_keeps_a_few_of_the_newest_and_none_that_has_ended() -> None:
    ended = make_identity([NAME], NOW - 2 * LIFETIME).authority
    earlier = [make_identity([NAME], NOW - timedelta(days=day)).authority for day in range(1, 20)]
    own = make_identity([NAME], NOW).authority
    bundle = bundle_with(ended + b"".join(earlier), [own], NOW)
    assert bundle.count(b"BEGIN CERTIFICATE") == MOST_AUTHORITIES
    assert holds(bundle, own)
    assert not holds(bundle, ended)
    kept = MOST_AUTHORITIES - 1
    assert [holds(bundle, one) for one in earlier] == [True] * kept + [False] * (19 - kept)


def test_nobody_who_serves_is_pushed_out_however_often_another_restarts() -> None:
    staying = make_identity([NAME], NOW - timedelta(days=30)).authority
    bundle = bundle_with(b"", [staying], NOW)
    for _ in range(2 * MOST_AUTHORITIES):
        restarted = make_identity([NAME], NOW).authority
        bundle = bundle_with(bundle, [restarted], NOW)
        assert holds(bundle, staying)
        bundle = bundle_with(bundle, [staying], NOW)
        assert bundle_with(bundle, [restarted], NOW) == bundle, "nobody goes on writing"


def test_six_replicas_that_all_renew_at_once_do_not_go_before_each_other_for_ever() -> None:
    replicas = [[make_identity([NAME], NOW).authority for _ in range(2)] for _ in range(6)]
    bundle, writes = b"", 0
    for _ in range(20):
        for own in replicas:
            wanted = bundle_with(bundle, own, NOW)
            writes += wanted != bundle
            bundle = wanted
    assert writes == len(replicas)
    assert all(holds(bundle, authority) for own in replicas for authority in own)


@pytest.mark.parametrize("spoilt", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_whatever_stood_there_ours_stands_there_afterwards(spoilt: bytes) -> None:
    own = make_identity([NAME], NOW).authority
    assert bundle_with(spoilt, [own], NOW) == own


def test_a_certificate_is_replaced_at_two_thirds_of_its_life_after_its_authority_is_known() -> None:
    rotation = Rotation([NAME], NOW)
    first = rotation.serving
    assert not rotation.step(True, NOW + RENEWED_AFTER - timedelta(seconds=1))
    assert rotation.authorities == (first.authority,)

    due = NOW + RENEWED_AFTER
    assert not rotation.step(True, due)
    assert len(rotation.authorities) == 2
    assert not rotation.step(False, due + timedelta(hours=1)), "its authority is not announced"
    announced = due + timedelta(hours=2)
    assert not rotation.step(True, announced), "it must spread first"
    assert rotation.serving is first
    assert rotation.step(True, announced + Rotation.SPREADING)
    assert rotation.serving is not first
    assert rotation.authorities == (rotation.serving.authority,)
    assert rotation.serving.end > first.end


@pytest.mark.parametrize("ahead", [timedelta(hours=2), timedelta(days=400)])
def test_a_certificate_of_a_clock_that_was_ahead_is_replaced_once_it_is_right(
    ahead: timedelta,
) -> None:
    rotation = Rotation([NAME], NOW + ahead)
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        shaken_hands(rotation.serving, rotation.serving.authority)
    assert not rotation.step(True, NOW)
    assert not rotation.step(True, NOW), "it must spread first"
    assert rotation.step(True, NOW + Rotation.SPREADING)
    shaken_hands(rotation.serving, rotation.serving.authority)
    assert not rotation.step(True, NOW + timedelta(hours=1))


@pytest.mark.parametrize("jump", [timedelta(hours=-1), timedelta(hours=1)])
def test_a_clock_that_jumps_by_an_hour_costs_no_certificate_its_belief(jump: timedelta) -> None:
    rotation = Rotation([NAME], NOW)
    for seconds in (0, 15, 30, 45):
        rotation.step(True, NOW + jump + timedelta(seconds=seconds))
    bundle = bundle_with(b"", rotation.authorities, NOW + jump)
    shaken_hands(rotation.serving, bundle)


def test_a_clock_that_is_set_back_while_an_authority_spreads_holds_it_up_by_seconds() -> None:
    rotation = Rotation([NAME], NOW)
    due = NOW + RENEWED_AFTER
    assert not rotation.step(True, due)
    assert not rotation.step(True, due)
    back = due - timedelta(minutes=50)
    assert not rotation.step(True, back)
    assert rotation.step(True, back + Rotation.SPREADING)
