"""An S3 server in a process of its own: moto's. Its data is gone when it ends."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from helpers.ports import held_port

LIMIT_S = 60.0
NEEDED = ("moto", "flask", "obstore")  # pip install 'holdfast[dev-s3]'


def skip_without_packages() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install 'holdfast[dev-s3]'")


class S3Server:
    """On a port that it keeps when it is started again."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """``host``: perhaps of another machine; then somebody else starts it, by its ``words``."""
        self.port = port or held_port()
        self._host, self.url = host, f"http://{host}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",  # nobody is asked for keys
        }

    @property
    def words(self) -> list[str]:
        code = f"from moto.server import main; main(['-H', '{self._host}', '-p', '{self.port}'])"
        return [sys.executable, "-c", code]

    def start(self, *buckets: str) -> None:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self.words, stdout=quiet, stderr=quiet)
        deadline_s = time.monotonic() + LIMIT_S
        while not self._answers():
            assert self._process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline_s, "the server does not come up"
            time.sleep(0.05)
        for bucket in buckets:
            request = urllib.request.Request(f"{self.url}/{bucket}", method="PUT")
            urllib.request.urlopen(request, timeout=LIMIT_S).close()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def use(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
