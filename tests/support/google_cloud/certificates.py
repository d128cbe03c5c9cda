"""Keys of one test: a certificate authority with a certificate for Google's hosts, and a service account."""

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

TOKEN_URI = "https://oauth2.googleapis.com/token"


@dataclass(frozen=True)
class Keys:
    """Files of the keys."""

    authority: Path
    """What clients trust."""
    server: Path
    """Certificate and key of `*.googleapis.com`."""
    account: Path
    """JSON of a service account, for `GOOGLE_APPLICATION_CREDENTIALS`."""
    account_public: bytes
    """PEM of its public key, which checks what it signs."""


def make_keys(folder: Path, project: str) -> Keys:
    """Make all of them, for a day, in `folder`."""
    root, root_name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    trusted = _certificate(root_name, root_name, root, root, x509.BasicConstraints(ca=True, path_length=0))
    leaf = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.DNSName("*.googleapis.com"), x509.DNSName("googleapis.com")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "googleapis.com")])
    certificate = _certificate(name, root_name, leaf, root, names)
    keys = Keys(folder / "authority.pem", folder / "server.pem", folder / "account.json", b"")
    keys.authority.write_bytes(trusted.public_bytes(serialization.Encoding.PEM))
    keys.server.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + _private(leaf))
    signer = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    account = {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "test",
        "private_key": _private(signer).decode(),
        "client_email": f"launcher@{project}.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": TOKEN_URI,
    }
    keys.account.touch(mode=0o600)
    keys.account.write_text(json.dumps(account), encoding="utf-8")
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return Keys(keys.authority, keys.server, keys.account, signer.public_key().public_bytes(serialization.Encoding.PEM, form))


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _certificate(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number(), now, now + dt.timedelta(days=1))
    builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    return builder.sign(signer, hashes.SHA256())
