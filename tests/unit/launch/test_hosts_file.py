"""hosts.toml: what it may say, and the one line for what it may not."""

import pytest

from holdfast.errors import ConfigError
from holdfast.launch.kinds import open_cluster
from holdfast.launch.ssh.hosts_file import SshHost, read_hosts
from holdfast.launch.ssh.words import ssh_words


def read(folder, text):
    path = folder / "hosts.toml"
    path.write_text(text)
    return read_hosts(path)


def test_a_file_of_hosts_is_read(tmp_path):
    file = read(
        tmp_path,
        """
        ssh_config = "config"
        [[host]]
        address = "node-1"
        slots = 4
        [[host]]
        address = "fd00::2"
        name = "b"
        user = "ada"
        port = 2222
        python = "/opt/hf/bin/python"
        advertise = "10.0.0.2"
        workdir = "/data/my job"
        """,
    )
    first, second = file.hosts
    assert file.ssh_config == tmp_path / "config"
    assert first == SshHost("node-1", slots=4)
    assert (first.machine, second.machine) == ("node-1", "b")
    words = ssh_words(second, file.ssh_config)
    assert words[0] == "ssh"
    assert words[words.index("--") + 1] == "fd00::2"
    assert [*words[words.index("-p") :][:2], *words[words.index("-l") :][:2]] == (
        ["-p", "2222", "-l", "ada"]
    )
    assert "/data/my job" in words[-1]


H = '[[host]]\naddress = "a"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no hosts; expected"),
        ("host = 1", "has no hosts; expected"),
        ("[[host]]\nslots = 1", "host 1: expected"),
        (f"{H}slots = 0", "slots=0: expected at least 1"),
        (f"{H}slots = '1'", "slots='1': expected a whole number"),
        (f"{H}slots = true", "slots=True: expected a whole number"),
        (f"{H}user = 1", "user=1: expected text"),
        (f"{H}user = '-x'", "user='-x': expected the name of a user"),
        (f"{H}port = 70000", "port=70000: expected 1 to 65535"),
        (f"{H}advertise = 'a b'", "advertise='a b': expected a host name"),
        (f"{H}color = 'red'", "color is not known; expected address, slots"),
        ('[[host]]\naddress = "-oProxyCommand=x"', "expected a host name"),
        ('[[host]]\naddress = "fd00::2"', "'fd00::2' cannot be its name"),
        (f"{H}{H}", "two hosts are called a"),
        (f"{H}x = ", "is not TOML"),
        (f"shell = 'sh'\n{H}", "has shell; expected"),
        (f"ssh_config = 1\n{H}", "ssh_config=1: expected a path"),
    ],
)
def test_what_is_wrong_in_it_is_said_in_one_line(tmp_path, text, expected):
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert expected in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "hosts.toml"))
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.toml: cannot be read \(No such file"):
        open_cluster(f"ssh:{tmp_path}/no.toml", print)


def test_more_machines_than_hosts_are_refused(tmp_path):
    (tmp_path / "hosts.toml").write_text(H)
    cluster = open_cluster(f"ssh:{tmp_path}/hosts.toml", print)
    with pytest.raises(ConfigError, match="has 1 hosts; 3 machines are wanted"):
        cluster.start(tmp_path / "ticket", 3)


@pytest.mark.parametrize("text", ["", "ssh", "ssh:", "fly", "fly:x"])
def test_a_launcher_that_there_is_not_is_refused(text):
    with pytest.raises(ConfigError, match=f"cluster {text}: expected ssh:FILE"):
        open_cluster(text, print)
