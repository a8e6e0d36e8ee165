"""Switches of torch that change bits are compared before training and watched while it runs."""

import pytest
import torch

from helpers import jobs, runs
from holdfast.errors import ConfigError
from holdfast.runtime.job.fingerprint import fingerprint
from holdfast.runtime.job.torch_settings import SettingsWatch

pytestmark = pytest.mark.usefixtures("one_thread")


def tf32_by_the_newer_switch(on):
    torch.backends.mkldnn.conv.fp32_precision = "tf32" if on else "none"


CHANGES = {
    "threads": lambda on: torch.set_num_threads(2 if on else 1),
    "default dtype": lambda on: torch.set_default_dtype(torch.float64 if on else torch.float32),
    "deterministic": torch.use_deterministic_algorithms,
    "fp32 precision of mkldnn.matmul": lambda on: torch.set_float32_matmul_precision(
        "medium" if on else "highest"
    ),
    "fp32 precision of mkldnn.conv": tf32_by_the_newer_switch,
    "mkldnn enabled": lambda on: torch._C._set_mkldnn_enabled(not on),
    "mkldnn deterministic": torch._C._set_mkldnn_deterministic,
    "flash attention": lambda on: torch.backends.cuda.enable_flash_sdp(not on),
    "autocast": lambda on: torch.set_autocast_enabled("cpu", on),
    "flush denormal": torch.set_flush_denormal,
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_is_in_the_fingerprint_and_who_changes_it_is_named(name):
    said = []
    exact, fast = SettingsWatch(exact=True), SettingsWatch(exact=False, say=said.append)
    before = fingerprint()
    for watch in (exact, fast):
        watch.check("layer 0 (Linear)")
    CHANGES[name](True)
    try:
        assert fingerprint()[name] != before[name]
        with pytest.raises(ConfigError, match=rf"layer 1 \(Own\) changed torch's {name} from"):
            exact.check("layer 1 (Own)")
        fast.check("layer 1 (Own)")
    finally:
        CHANGES[name](False)
    fast.check("layer 1 (Own)")
    [line] = said
    assert f"torch's {name} from" in line
    assert fingerprint() == before


def test_onednns_switches_in_the_environment_are_in_the_fingerprint(monkeypatch):
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    assert fingerprint()["ONEDNN_DEFAULT_FPMATH_MODE"] == "BF16"


CHANGING = (
    jobs.SMALL.replace("NUM_LAYERS", "2")
    .replace("range(2)]", "range(2)] + [Changes()]")
    .replace(
        "class Numbers:",
        """
CALLS = []


def change(who):
    CALLS.append(who)
    if WHO == who and CALLS.count(who) == 30:
        torch.set_float32_matmul_precision("medium")


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        change("backward")
        return gradient


class Changes(nn.Module):
    def forward(self, x):
        change("layer")
        return Backward.apply(x)


class Numbers:""",
    )
    .replace("        return torch.full", '        change("data")\n        return torch.full')
)


@pytest.fixture
def usual_precision():
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("usual_precision")
@pytest.mark.parametrize(
    ("who", "named"),
    [
        ("data", "Job.data or Job.collate"),
        ("layer", "layer 2 (Changes)"),
        ("backward", "a backward (0BW"),
    ],
)
def test_a_change_in_the_middle_of_a_run_ends_it_with_one_line_and_a_checkpoint(
    tmp_path, who, named
):
    path = jobs.write(tmp_path, "changing", CHANGING.replace("WHO", repr(who)))
    ended = runs.threads(path, tmp_path / "run", steps=20)
    assert ended.exit_code == 1  # as whatever ends a run early, with a checkpoint
    [line] = ended.stderr.splitlines()
    assert named in line
    assert "changed torch's fp32 precision of mkldnn.matmul from ieee to bf16" in line
    assert 0 < len(ended.losses) < 20
    assert ended.state()


@pytest.mark.usefixtures("usual_precision")
def test_in_fast_mode_a_change_is_said(tmp_path):
    path = jobs.write(tmp_path, "changing", CHANGING.replace("WHO", repr("data")))
    fast = runs.settings("gradients.mode=fast")
    done = runs.finished(runs.threads(path, tmp_path / "run", *fast, steps=20))
    [line] = [line for line in done.lines if line.startswith("warning: ")]
    assert "Job.data or Job.collate changed torch's fp32 precision of mkldnn.matmul" in line
