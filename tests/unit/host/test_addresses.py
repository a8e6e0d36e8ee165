"""Hosts and HOST:PORT: one form each, and what is printed is read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.addresses import host_port, is_host, is_loopback, is_wildcard, parse_host_port
from holdfast.errors import ConfigError

HOSTS = [
    "127.0.0.1",
    "10.77.0.1",
    "::1",
    "fd77::a",
    "localhost",
    "node-7.rack_2.example",
    "a",
    "7a",
]
NO_HOSTS = [
    "",
    " ",
    "a b",
    "a..b",
    ".a",
    "-a",
    "a-",
    "ü.invalid",
    "a" * 64,
    f"{'a.' * 127}a",
    "a/b",
]
NO_HOSTS += ["1.2.3", "1.2.3.4.5", "256.0.0.1", "01.2.3.4", "[::1]", "::1::", "fe80::1%eth0", "a:1"]
NO_HOSTS += ["a\n", "\0", "7"]


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_and_its_port_are_read_as_they_are_written(host):
    assert is_host(host)
    text = host_port(host, 4000)
    assert text == (f"[{host}]:4000" if ":" in host else f"{host}:4000")
    assert parse_host_port(text, "--join") == (host, 4000)


@pytest.mark.parametrize("host", NO_HOSTS)
def test_what_is_no_host_is_refused_in_one_line(host):
    assert not is_host(host)
    with pytest.raises(
        ConfigError, match=r"--join .*: expected HOST:PORT, such as .*\[::1\]:40123"
    ):
        parse_host_port(host_port(host, 4000), "--join")


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "a", "a:", ":4000", "a:0", "a:65536", "a:-1", "a:²", "a:http", "a:123456"),
        *("a:4000\n", "::1:4000", "[::1]", "[::1]:", "[::1]4000", "[127.0.0.1]:4000", "[a]:4000"),
        "[]:4000",
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_host_port(text, "--join")


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_whatever_is_read_is_written_the_same_or_refused(text):
    try:
        host, port = parse_host_port(text, "x")
    except ConfigError:
        return
    assert int(text.rpartition(":")[2]) == port
    assert host_port(host, port).rpartition(":")[0] == text.rpartition(":")[0]


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        *(("0.0.0.0", "wildcard"), ("::", "wildcard"), ("0::0", "wildcard")),
        *(("127.0.0.1", "loopback"), ("127.9.9.9", "loopback"), ("::1", "loopback")),
        *(("localhost", "loopback"), ("10.0.0.1", "other"), ("a.example", "other"), ("", "other")),
    ],
)
def test_wildcards_and_loopback_are_known(host, kind):
    assert (is_wildcard(host), is_loopback(host)) == (kind == "wildcard", kind == "loopback")
