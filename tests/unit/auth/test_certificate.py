"""The key of a run: who may read it, who makes it, and what is said when that is not possible."""

import hashlib
import ssl
import sys

import pytest

from helpers.certificates import tls_key
from holdfast.auth.certificate import KEY_FILE, kept_key, new_key, parse_fingerprint, write_key
from holdfast.auth.handshake import COORDINATOR, WORKER_ROLE, Answerer, Caller, Identity
from holdfast.config import NetworkConfig
from holdfast.control.io.recorder import Pass
from holdfast.errors import ConfigError, HandshakeFailed

SECRET = bytes(range(32))
ME, RUN = Identity(WORKER_ROLE, "1.0", 3), Identity(COORDINATOR, "", 3)
BEYOND = NetworkConfig(listen="0.0.0.0")


def test_the_fingerprint_is_that_of_the_certificate_as_openssl_shows_it():
    key = tls_key()
    pem = key.pem.decode()
    certificate = ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE") :])
    assert key.fingerprint == hashlib.sha256(certificate).hexdigest()
    assert key.binding.hex() == key.fingerprint != tls_key(1).fingerprint
    assert "PRIVATE" not in repr(key)


def test_a_key_is_kept_where_only_its_owner_can_read_it(tmp_path):
    assert kept_key(tmp_path) is None
    write_key(tmp_path, tls_key())
    assert kept_key(tmp_path) == tls_key()
    path = tmp_path / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read it"):
        kept_key(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\xff", b"-----BEGIN CERTIFICATE-----\nxx"])
def test_a_file_that_holds_no_key_is_named(tmp_path, data):
    path = tmp_path / KEY_FILE
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=f"{KEY_FILE}: holds no certificate; remove it"):
        kept_key(tmp_path)


def test_what_has_to_be_installed_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError) as why:
        new_key("network.tls=on")
    assert str(why.value) == (
        "network.tls=on: TLS needs the package cryptography; install it with: "
        "pip install 'holdfast[tls]'"
    )


@pytest.mark.parametrize(
    ("settings", "encrypts"),
    [
        ({}, False),
        ({"listen": "::1"}, False),
        ({"listen": "localhost"}, False),
        ({"tls": "on"}, True),
        ({"listen": "0.0.0.0"}, True),
        ({"listen": "::"}, True),
        ({"listen": "node-1"}, True),
        ({"listen": "0.0.0.0", "tls": "off"}, False),
    ],
)
def test_a_run_speaks_tls_as_soon_as_others_can_reach_it(settings, encrypts):
    assert NetworkConfig(**settings).encrypts_control == encrypts


def test_a_run_that_goes_on_keeps_its_key_and_a_new_one_has_its_own(tmp_path):
    tls_key()  # or there is nothing to make one with
    first = Pass.of(tmp_path, None, BEYOND, continues=False)
    first.write(tmp_path)
    assert Pass.of(tmp_path, None, BEYOND, continues=True).key == first.key
    other = Pass.of(tmp_path / "other", None, BEYOND, continues=False)
    assert other.certificate != first.certificate
    assert Pass.of(tmp_path, None, NetworkConfig(), continues=True).certificate == ""


def test_without_the_package_a_run_that_others_can_reach_says_both_ways_out(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"network.listen=0.0.0.0 without network.tls=off: TLS"):
        Pass.of(tmp_path, None, BEYOND, continues=False)


def test_a_fingerprint_may_be_written_as_openssl_does():
    digits = "ab" * 32
    assert parse_fingerprint(":".join(["AB"] * 32), "--certificate") == digits
    with pytest.raises(ConfigError, match="--certificate abc: is no fingerprint; expected 64 hex"):
        parse_fingerprint("abc", "--certificate")


@pytest.mark.parametrize(
    ("seen", "shown"), [(b"", b"a" * 32), (b"a" * 32, b""), (b"a" * 32, b"b" * 32)]
)
def test_s1_proofs_for_different_certificates_do_not_fit(seen, shown, monkeypatch):
    caller, answerer = Caller(SECRET, ME, COORDINATOR, seen), Answerer(SECRET, RUN, shown)
    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        caller.feed(answerer.feed(caller.hello))
    monkeypatch.setattr("secrets.token_bytes", bytes)  # all that is said is the same
    careless, answerer = Caller(SECRET, ME, COORDINATOR, seen), Answerer(SECRET, RUN, shown)
    answerer.feed(careless.hello)
    proof = careless.feed(Answerer(SECRET, RUN, seen).feed(careless.hello))
    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        answerer.feed(proof)
