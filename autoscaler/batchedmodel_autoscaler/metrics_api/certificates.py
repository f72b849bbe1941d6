"""The autoscaler's own certificates, kept in memory, and the bundle by which others know them.

Each process makes an authority of its own, which signs one serving certificate. Nothing is stored:
after a restart a new authority is announced, and an upgrade of the chart has nothing to keep. A
bundle holds the authorities of all processes that may be serving, so that a new process never
breaks the old one beside it. Wall-clock times are arguments, with time zone.
"""

import os
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME: Final = timedelta(days=90)
RENEWED_AFTER: Final = LIFETIME * 2 / 3
MOST_AUTHORITIES: Final = 16
"""In one bundle. The newest stand first, and the last are dropped."""
_SAFE_AUTHORITIES: Final = MOST_AUTHORITIES - 4
"""A process keeps its authorities among the first so many, so that restarts beside it never push
them out. There are more places than authorities that serve: six processes with two each, which
would else overtake each other for ever."""
_CLOCKS_DIFFER: Final = timedelta(hours=1)
_AUTHORITY_NAME: Final = "batchedmodel-autoscaler-authority"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A serving certificate, its key, and the authority that vouches for it; all PEM."""

    authority: bytes
    certificate: bytes
    key: bytes
    made: datetime

    @property
    def due(self) -> datetime:
        """When the next one should be made."""
        return self.made + RENEWED_AFTER

    @property
    def end(self) -> datetime:
        """When it is no longer believed."""
        return self.made + LIFETIME


def make_identity(names: Sequence[str], now: datetime) -> Identity:
    """A new authority and its certificate for the DNS names."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name(_AUTHORITY_NAME)
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        # A common name may have 64 characters; clients look at the alternative names only.
        _builder(_name(names[0][:64]), authority_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    return Identity(
        authority=_pem(authority),
        certificate=_pem(certificate),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        made=now,
    )


def bundle_with(present: bytes, own: Iterable[bytes], now: datetime) -> bytes:
    """The bundle that should stand where `present` stands: with ours, and without ended ones.

    Other authorities that may serve stay in it. It is `present` itself when that is right.
    """
    there = _certificates(present)
    ours = [x509.load_pem_x509_certificate(authority) for authority in own]
    others = [
        found
        for found in there
        if found not in ours
        and found.not_valid_after_utc > now
        and found.subject == _name(_AUTHORITY_NAME)
    ]
    wanted = [*ours, *others[: max(0, MOST_AUTHORITIES - len(ours))]]
    if set(wanted) == set(there) and set(ours) <= set(there[:_SAFE_AUTHORITIES]):
        return present
    return b"".join(_pem(found) for found in wanted)


def holds(bundle: bytes, authority: bytes) -> bool:
    """Whether the bundle holds the authority."""
    return x509.load_pem_x509_certificate(authority) in _certificates(bundle)


class Rotation:
    """Which identity serves, and which is announced meanwhile.

    A new authority is announced first. Its certificate serves once all API servers can have seen
    the announcement. The old authority stays in the bundle until it ends.
    """

    SPREADING: Final = timedelta(seconds=30)
    """The time in which an announcement reaches every API server."""

    def __init__(self, names: Sequence[str], now: datetime) -> None:
        self._names = tuple(names)
        self.serving = make_identity(self._names, now)
        self._next: Identity | None = None
        self._announced: datetime | None = None

    @property
    def authorities(self) -> tuple[bytes, ...]:
        """Those that must stand in every bundle."""
        if self._next is None:
            return (self.serving.authority,)
        return (self.serving.authority, self._next.authority)

    def step(self, announced: bool, now: datetime) -> bool:
        """Take the next step if it is time; returns whether another identity serves from now on.

        `announced`: every bundle was seen to hold all of `authorities`.
        """
        if self._next is None:
            if now >= self.serving.due or now < self.serving.made - _CLOCKS_DIFFER / 2:
                # Its time is over, or a clock that was ahead made it: others believe it from an
                # hour before, and may not believe it yet.
                self._next, self._announced = make_identity(self._names, now), None
            return False
        if self._announced is None or now < self._announced:
            self._announced = now if announced else None
        if self._announced is None or now < self._announced + self.SPREADING:
            return False
        self.serving, self._next = self._next, None
        return True


def server_context(identity: Identity, client_authority: str) -> ssl.SSLContext:
    """Serves as `identity`, and asks clients for a certificate of the authority if there is one.

    Clients may show none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Python 3.13 sets it by default in places; many clusters' authorities lack key identifiers.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    if client_authority:
        context.load_verify_locations(cadata=client_authority)
        context.verify_mode = ssl.CERT_OPTIONAL
    # The ssl module reads files only; this one has no name and never touches a disk.
    descriptor = os.memfd_create("serving-certificate")
    with open(descriptor, "wb") as file:
        file.write(identity.key + identity.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(bundle) if bundle.strip() else []
    except ValueError:
        # Nobody can use it, so nothing of it is worth keeping.
        return []


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - _CLOCKS_DIFFER)
        .not_valid_after(now.astimezone(UTC) + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
