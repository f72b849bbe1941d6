"""The keys and certificates of a cluster, made afresh for every run."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=365)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that keeps what it issues in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name, None)
        usage = _key_usage(digital_signature=False, key_cert_sign=True)
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / f"{name}.crt"
        self.certificate.write_bytes(_pem(self._certificate))

    def issue(
        self,
        name: str,
        *,
        common_name: str,
        organisation: str | None = None,
        dns_names: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> Pair:
        """A certificate good for clients and, given names or addresses, for a server too."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(common_name, organisation), self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True, key_cert_sign=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if dns_names or addresses:
            names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
            names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pair = Pair(certificate=self._folder / f"{name}.crt", key=self._folder / f"{name}.key")
        pair.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        _write_key(pair.key, key)
        return pair


def write_signing_key(private: Path, public: Path) -> None:
    """The pair that service accounts' tokens are signed and checked with."""
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(private, key)
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(tz=datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str, organisation: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organisation is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(attributes)


def _key_usage(*, digital_signature: bool, key_cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
