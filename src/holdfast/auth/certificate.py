"""A key and its certificate, which nobody has signed but itself: who is called shows it.

Made for one run, or for one process. Which of all certificates is the right one is not said by an
authority: its fingerprint is told to those who call, or is proven with the run's secret.
"""

import hashlib
import ssl
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from holdfast.auth.secret import read_private, write_private
from holdfast.errors import ConfigError
from holdfast.names import SHA256

KEY_FILE = "tls.pem"  # inside the directory of a run: its key, then its certificate
# Nobody asks whether it is valid today: machines whose clocks are wrong take part, too.
_FROM, _UNTIL = datetime(2000, 1, 1), datetime(9999, 12, 31, 23, 59, 59)
_BEGIN = "-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class TlsKey:
    pem: bytes = field(repr=False)  # never leaves this machine
    fingerprint: str  # SHA-256 of the certificate, which everybody may know

    @property
    def binding(self) -> bytes:
        return bytes.fromhex(self.fingerprint)


def fingerprint_of(certificate: bytes) -> str:
    """``certificate``: as it travels (DER)."""
    return hashlib.sha256(certificate).hexdigest()


def parse_fingerprint(text: str, where: str) -> str:
    """As people copy it, perhaps with colons."""
    found = text.replace(":", "").lower()
    if not SHA256.fits(found):
        raise ConfigError(f"{where} {text}: is no fingerprint; expected {SHA256.what}")
    return found


def new_key(wanted_by: str) -> TlsKey:
    """``wanted_by``: the setting that asks for it. ConfigError: what it needs is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as why:
        raise ConfigError(
            f"{wanted_by}: TLS needs the package cryptography; install it with: "
            "pip install 'holdfast[tls]'"
        ) from why
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "holdfast")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret_part = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    return _from_pem(secret_part + certificate.public_bytes(encoding))


def write_key(run_dir: Path, key: TlsKey) -> None:
    """For the next launch of the run, which is called by those who know this one."""
    write_private(run_dir / KEY_FILE, key.pem.decode("ascii"))


def kept_key(run_dir: Path) -> TlsKey | None:
    """Of an earlier launch of the run in this directory; None: it had none."""
    path = run_dir / KEY_FILE
    if not path.exists():
        return None
    pem = read_private(path, "the run's TLS key")
    try:
        return _from_pem(pem)
    except ValueError as why:
        raise ConfigError(
            f"the run's TLS key {path}: holds no certificate; remove it, and a new one is made"
        ) from why


def _from_pem(pem: bytes) -> TlsKey:
    text = pem.decode("ascii")
    certificate = _BEGIN + text.partition(_BEGIN)[2]
    return TlsKey(pem, fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate)))
