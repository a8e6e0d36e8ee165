"""Runs that start from weights of others, and whose model goes out again: the same bits."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import holdfast as hf
from helpers import jobs, runs
from helpers.pages import DOCS, blocks
from helpers.runs import finished
from holdfast.job_call import load_job
from holdfast.runtime.stage.named_tensors import layer_digest
from holdfast.storage.manifest import find
from holdfast.weights.starting import StartingWeights

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
NO_CHECKPOINT = runs.settings("checkpoint.first_step=0", "checkpoint.every_steps=100")
SMALL = {"steps": 3, "microbatches": 4}

# A list of layers as a Llama has them: rotary tables that are in no state_dict(), tied ends.
LLAMA = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

from holdfast import Job

WIDTH, VOCABULARY, CONTEXT = 8, 16, 6


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        inv_freq = 1.0 / 100 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x):
        angles = torch.outer(torch.arange(CONTEXT), self.inv_freq)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        left, right = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-right, left], dim=-1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = Rotary()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(rms_norm(x, (WIDTH,))).chunk(3, dim=-1)
        q, k = self.rotary(q), self.rotary(k)
        x = x + scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.down(silu(self.up(rms_norm(x, (WIDTH,)))))


class Text:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (torch.arange(CONTEXT + 1) * (index + 1)) % VOCABULARY
        return tokens[:-1], tokens[1:]


def job():
    embed, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
    head.weight = embed.weight
    return Job(
        layers=[embed, Block(), nn.LayerNorm(WIDTH), Block(), head],
        loss=lambda out, target: cross_entropy(out.flatten(0, 1), target.flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        data=Text(),
        microbatch_size=2,
    )
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    return jobs.write(tmp_path_factory.mktemp("llama"), "llama", LLAMA)


@pytest.fixture(scope="module")
def weights(job) -> Path:
    """Drawn from another seed, and beside the job; the head is left out, as it is tied."""
    state = nn.Sequential(*load_job(job, 7).layers).state_dict()
    path = job.with_name("start.safetensors")
    save_file({key: value.clone() for key, value in state.items() if key != "4.weight"}, path)
    return path


@pytest.fixture(scope="module")
def alone(job, weights, tmp_path_factory):
    """One worker, undisturbed."""
    run_dir = tmp_path_factory.mktemp("alone") / "run"
    return finished(runs.threads(job, run_dir, "--weights", str(weights), **SMALL))


def test_a_run_starts_from_its_weights_and_remembers_which(alone, job, weights, tmp_path):
    drawn = finished(runs.threads(job, tmp_path / "drawn", **SMALL))
    assert drawn.sha256 != alone.sha256
    origin = find(alone.run_dir).origin
    assert origin.settings["job"]["weights"] == "start.safetensors"
    told = origin.traits["the weights that the run starts from"]
    assert told == StartingWeights(weights, None, strict=True).digest()


def test_without_a_learning_rate_the_weights_come_out_as_they_went_in(weights, tmp_path):
    still = LLAMA.replace("AdamW(parameters, lr=1e-2)", "SGD(parameters, lr=0.0)")
    job = jobs.write(tmp_path, "still", still)
    words = ["--weights", str(weights), *runs.layout("1x2")]
    run = finished(runs.threads(job, tmp_path / "run", *words, **SMALL))
    out = load_file(hf.export(run.run_dir) / "model.safetensors")
    given = load_file(weights)
    assert out.keys() == {*given, "4.weight"}
    for key, tensor in out.items():
        assert torch.equal(tensor, given["0.weight" if key == "4.weight" else key]), key


LOG = runs.settings("recovery.log=boundary", "workers.replace=1")
FAULTS = {
    "a replica dies and comes back": ("2x2", "kill 1.0 @ 1.B1", runs.settings("workers.replace=1")),
    "a stage is replayed from its start": ("1x2", "kill 0.1 @ 2.F1", LOG),
    "all begin anew": ("1x2", "kill 0.0 @ 2.F1", runs.settings("workers.replace=1")),
}


@pytest.mark.parametrize("what", FAULTS)
def test_whoever_is_rebuilt_before_the_first_checkpoint_comes_from_the_weights(
    what, alone, job, weights, tmp_path
):
    layout, fault, more = FAULTS[what]
    words = [*runs.layout(layout), "--fault", fault, *more, *NO_CHECKPOINT]
    run = runs.threads(job, tmp_path / "run", "--weights", str(weights), *words, **SMALL)
    assert finished(run).summary["faults_fired"] == [fault]
    assert (run.sha256, run.losses) == (alone.sha256, alone.losses)


def test_a_resumed_run_needs_the_weights_no_more_and_takes_no_others(alone, job, weights, tmp_path):
    own = tmp_path / "own.safetensors"
    own.write_bytes(weights.read_bytes())
    short = {**SMALL, "steps": 1}
    first = finished(runs.threads(job, tmp_path / "run", "--weights", str(own), **short))
    own.unlink()
    words = ["train", "--resume", str(first.run_dir), "--steps", "3"]
    refused = runs.holdfast([*words, "--weights", str(weights)], first.run_dir)
    assert refused.exit_code == 2
    assert f"--weights {weights}: the run has begun, from {own}, and goes on" in refused.stderr
    more = runs.holdfast([*words, "--stages", "2"], first.run_dir)
    assert finished(more).sha256 == alone.sha256


def test_weights_that_differ_between_workers_are_one_line(job, weights, tmp_path, monkeypatch):
    digests = iter("abcd")
    monkeypatch.setattr(StartingWeights, "digest", lambda self: next(digests))
    words = ["--weights", str(weights), "--stages", "2"]
    run = runs.threads(job, tmp_path / "run", *words, **SMALL)
    assert run.exit_code == 2
    [line] = run.stderr.splitlines()
    assert "workers 0.0 and 0.1 differ in the weights that the run starts from: " in line


def test_weights_that_do_not_fit_end_the_run_with_one_line_or_a_warning(job, weights, tmp_path):
    head = tmp_path / "head.safetensors"
    save_file({k: v for k, v in load_file(weights).items() if not k.startswith("2.")}, head)
    run = runs.threads(job, tmp_path / "run", "--weights", str(head), **SMALL)
    assert run.exit_code == 2
    assert "tensors 2 missing (2.weight, 2.bias); map the names" in run.stderr
    words = ["--weights", str(head), *runs.settings("job.weights_strict=false")]
    loose = finished(runs.threads(job, tmp_path / "loose", *words, **SMALL))
    told = " ".join(loose.lines)
    assert "tensors 2 missing (2.weight, 2.bias); 12 of 14 tensors are taken" in told


# --- and out again ---


def sha256_of(layers: list[nn.Module]) -> str:
    """As a run tells it of its parameters."""
    together = hashlib.sha256()
    for number, layer in enumerate(layers):
        together.update(f"{number}:{layer_digest(layer)}\n".encode())
    return together.hexdigest()


def test_an_export_loads_into_the_layers_and_has_the_sum_of_the_run(alone, job, tmp_path):
    model = nn.Sequential(*load_job(job, 3).layers)
    model.load_state_dict(load_file(hf.open_run(alone.run_dir).export() / "model.safetensors"))
    assert sha256_of(list(model)) == alone.sha256
    from_api = hf.open_run(alone.run_dir).model(job)
    assert sha256_of(list(from_api)) == alone.sha256


def test_a_run_starts_from_another_runs_export_as_from_its_checkpoint(alone, job, tmp_path):
    export = hf.export(alone.run_dir, "safetensors", tmp_path / "export")
    found = {
        name: hf.testing.train_in_threads(
            job, steps=2, stages=stages, config={"job.weights": str(path), "train.seed": 5}
        ).parameters_sha256
        for name, path, stages in [("run", alone.run_dir, 2), ("export", export, 1)]
    }
    assert found["run"] == found["export"]
    plain = hf.testing.train_in_threads(job, steps=2, config={"train.seed": 5})
    assert plain.parameters_sha256 != found["run"]


def test_checkpoints_at_an_address_are_exported(job, tmp_path):
    address = f"file://{tmp_path}/bucket"
    words = runs.settings(f"checkpoint.dir={address}")
    run = finished(runs.threads(job, tmp_path / "run", *words, "--stages", "2", **SMALL))
    model = nn.Sequential(*load_job(job, 3).layers)
    for place, step in [(address, None), (str(run.run_dir), 3), (address, 1)]:
        out = hf.export(place, out=tmp_path / "out", step=step, force=True)
        model.load_state_dict(load_file(out / "model.safetensors"))
        assert (sha256_of(list(model)) == run.sha256) == (step != 1)
    with pytest.raises(hf.ConfigError, match="is no directory; say where to write with out"):
        hf.export(address)
    with pytest.raises(hf.CheckpointError, match="no such checkpoint, but those of step 3, 1"):
        hf.export(address, out=tmp_path / "other", step=2)


def test_a_checkpoint_is_read_without_holdfast_by_the_lines_of_the_guide(alone, job, tmp_path):
    page = DOCS / "guides" / "get-the-model-out.md"
    [lines] = [b.body for b in blocks(page, "python") if b.title == "read_checkpoint.py"]
    assert len([line for line in lines.splitlines() if line]) <= 10
    (tmp_path / "read_checkpoint.py").write_text(lines)
    words = [find(alone.run_dir).directory, "model.safetensors"]
    code = f"""
import runpy, sys
sys.modules["holdfast"] = None  # an import of it is an error from here on
sys.argv[1:] = {words!r}
runpy.run_path("read_checkpoint.py")
try:
    import holdfast
except ImportError:
    print("without it")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=runs.LIMIT_S,
    )
    assert (done.returncode, done.stdout) == (0, "without it\n"), done.stderr
    model = nn.Sequential(*load_job(job, 3).layers)
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert sha256_of(list(model)) == alone.sha256


@pytest.mark.wide
def test_processes_start_from_weights_and_are_rebuilt_from_them(alone, job, weights, tmp_path):
    words = [*runs.layout("2x2"), *runs.settings("workers.replace=1"), *NO_CHECKPOINT]
    fault = ["--fault", "kill 1.0 @ 1.B1"]
    run = runs.processes(job, tmp_path / "run", "--weights", str(weights), *words, *fault, **SMALL)
    assert finished(run).summary["faults_fired"] == fault[1:]
    assert (run.sha256, run.losses) == (alone.sha256, alone.losses)
