"""Where a run's secret may come from; what is wrong with it is said in one line, without it."""

import os

import pytest

from holdfast.auth import secret as s
from holdfast.cluster import WorkerId
from holdfast.config import RunConfig
from holdfast.errors import ConfigError
from holdfast.protocol.spec import Access, WorkerSpec, spec_from, worker_environment

TEXT = "0f" * 32


def write(path, text=TEXT, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("text", [TEXT, TEXT.upper(), f"{TEXT}\n", f"  {TEXT} \n"])
def test_a_secret_is_read_from_a_file_of_its_owner(tmp_path, text):
    assert s.read_secret(write(tmp_path / "x", text), "--secret-file") == bytes.fromhex(TEXT)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o622, 0o611, 0o777])
def test_a_file_that_others_may_use_is_refused_with_the_cure(tmp_path, mode):
    path = write(tmp_path / "x", mode=mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod 600 {path}"):
        s.read_secret(path, "--secret-file")


@pytest.mark.parametrize("text", ["", "hunter2", TEXT[:-1], TEXT + "0", "x" * 64, "\0" * 64])
def test_what_is_no_secret_is_refused_and_not_repeated(tmp_path, text):
    path = write(tmp_path / "x", text)
    with pytest.raises(ConfigError, match="expected 64 hexadecimal digits") as refused:
        s.read_secret(path, "--secret-file")
    assert not text or text not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match=f"--secret-file {path}"):
            s.read_secret(path, "--secret-file")


def test_a_flag_comes_before_the_environment(tmp_path):
    one, two = write(tmp_path / "one", "11" * 32), write(tmp_path / "two", "22" * 32)
    environment = {s.SECRET_VARIABLE: "33" * 32, s.SECRET_FILE_VARIABLE: str(two)}
    assert s.given_secret(str(one), dict(environment)) == b"\x11" * 32
    assert s.given_secret(None, dict(environment)) == b"\x33" * 32
    del environment[s.SECRET_VARIABLE]
    assert s.given_secret(None, environment) == b"\x22" * 32
    assert s.given_secret(None, {}) is None


@pytest.mark.parametrize("with_flag", [False, True])
def test_once_it_was_read_it_is_gone_from_the_environment(tmp_path, with_flag):
    """Workers that are threads run a job's code in the launcher's process."""
    path = str(write(tmp_path / "x"))
    environment = {s.SECRET_VARIABLE: TEXT, s.SECRET_FILE_VARIABLE: path, "HOME": "/home"}
    assert s.given_secret(path if with_flag else None, environment) == bytes.fromhex(TEXT)
    assert environment == {"HOME": "/home"}


def test_a_file_of_another_user_is_refused_whatever_its_mode(tmp_path, monkeypatch):
    path, owner = write(tmp_path / "x"), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    said = f"--secret-file {path}: belongs to user id {owner}; expected your own, {owner + 1}; "
    with pytest.raises(ConfigError, match=said):
        s.read_secret(path, "--secret-file")


def test_a_run_keeps_its_secret_and_counts_its_launches(tmp_path):
    assert s.kept_secret(tmp_path) is None
    assert s.last_generation(tmp_path) == 0
    secret = s.new_secret()
    for generation in (1, 2):
        s.write_secret(tmp_path, secret)
        s.write_generation(tmp_path, generation)
    assert s.kept_secret(tmp_path) == secret
    assert s.last_generation(tmp_path) == 2
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["generation", "secret"]


@pytest.mark.parametrize("text", ["", "x", "-1", "1e9", str(1 << 32)])
def test_a_count_of_launches_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "generation").write_text(text)
    with pytest.raises(ConfigError, match="generation: "):
        s.last_generation(tmp_path)


def test_a_secret_goes_from_process_to_process_once():
    secret = s.new_secret()
    environment = {s.FD_VARIABLE: str(s.hand_over(secret))}
    assert s.taken_over(environment) == secret
    assert s.taken_over(environment) is None  # it is gone from the environment
    for wrong in ("", "x", "-1", "99999", "²"):
        assert s.taken_over({s.FD_VARIABLE: wrong}) is None


def test_neither_the_job_nor_a_text_gets_to_see_it(monkeypatch):
    monkeypatch.setenv(s.SECRET_VARIABLE, TEXT)
    monkeypatch.setenv(s.SECRET_FILE_VARIABLE, "/somewhere")
    environment = worker_environment(RunConfig())
    assert TEXT not in environment.values()
    assert s.SECRET_FILE_VARIABLE not in environment
    access = Access("127.0.0.1", 4000, bytes.fromhex(TEXT), 3)
    spec = WorkerSpec(WorkerId(0, 1), access, "/job.py", "5a" * 32, RunConfig())
    shown = f"{access} {access!r} {spec!r}"
    assert TEXT not in shown
    assert "\\x0f" not in shown


def test_a_spec_reads_as_it_was_written_and_holds_no_secret(tmp_path):
    access = Access("127.0.0.1", 4000, bytes.fromhex(TEXT), 3)
    spec = WorkerSpec(WorkerId(0, 1), access, str(tmp_path / "j.py"), "5a" * 32, RunConfig())
    assert TEXT not in spec.to_text()
    assert spec_from(spec.to_text(), access.secret) == spec


def test_a_relative_job_becomes_absolute_when_it_leaves_the_process(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    access = Access("127.0.0.1", 4000, bytes(32), 3)
    spec = WorkerSpec(WorkerId(0, 1), access, "j.py", "5a" * 32, RunConfig())
    assert spec_from(spec.to_text(), access.secret).job == os.path.join(tmp_path, "j.py")
