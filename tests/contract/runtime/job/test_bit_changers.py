"""What would change bits without a word is refused by name, said, or made exact."""

import io
import os
import random
import warnings

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from helpers import jobs, runs
from holdfast.config import config_from
from holdfast.errors import ConfigError
from holdfast.job import Job
from holdfast.models.gpt import gpt_layers
from holdfast.observability.events import FaultFired
from holdfast.runtime.job.bit_changers import check_bits, set_stance
from holdfast.runtime.stage.stage import Stage

EXACT = config_from({})
FAST = config_from({"gradients": {"mode": "fast"}})
TWO_BY_TWO = runs.layout("2x2")


def compiled(what):
    return torch.compile(what, backend="aot_eager")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.compiler.set_stance("default")
    torch.jit._state.enable()


def job(layers, **more):
    return Job(
        layers=layers,
        loss=more.pop("loss", nn.functional.mse_loss),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data=more.pop("data", [(torch.zeros(4), torch.zeros(4))]),
    )


def convnet():
    return [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Flatten(), nn.Linear(4, 2))]


def gpt():
    return list(gpt_layers(vocabulary=9, context=8, width=8, heads=2, depth=1))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, of inductor
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("way", ["wrapped", "compiled"])
@pytest.mark.parametrize("make", [convnet, gpt])
def test_a_compiled_layer_is_refused_by_name_and_only_said_in_fast_mode(make, way, backend):
    layers = make()
    if way == "wrapped":
        layers[1] = torch.compile(layers[1], backend=backend)
    else:
        layers[1].compile(backend=backend)
    with pytest.raises(ConfigError, match=r"layer 1 .*compile.*gradients\.mode=fast"):
        check_bits(job(layers), EXACT)
    [line] = check_bits(job(layers), FAST)
    assert line.startswith("layer 1 ")
    assert "depend on the layout" in line


class Inner(nn.Module):
    @torch.compile(backend="aot_eager")
    def scaled(self, x):
        return 2 * x

    def forward(self, x):
        return self.scaled(x)


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.function = compiled(torch.sin)


@pytest.mark.parametrize(
    ("layers", "loss", "part"),
    [
        ([nn.Sequential(nn.ReLU(), compiled(nn.Linear(2, 2)))], None, "layer 0, 1 "),
        ([Inner()], None, r"layer 0 \(Inner\) is compiled by torch.compile \(scaled\)"),
        ([Holder()], None, r"layer 0 \(Holder\).*\(function\)"),
        ([nn.ReLU()], compiled(nn.functional.mse_loss), "Job.loss is compiled"),
        ([nn.ReLU()], compiled(nn.MSELoss()), "Job.loss is compiled"),
    ],
)
def test_compiled_parts_of_a_layer_and_a_compiled_loss_are_found(layers, loss, part):
    with pytest.raises(ConfigError, match=part):
        check_bits(job(layers, loss=nn.functional.mse_loss if loss is None else loss), EXACT)


def test_a_compiled_function_that_a_layer_calls_runs_as_if_it_were_not():
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    function = torch.compile(lambda x: x.sin() + 1, backend=backend)
    set_stance(EXACT)
    function(torch.ones(2))
    assert not seen
    set_stance(FAST)
    function(torch.ones(2))
    assert seen


def test_threads_set_by_the_job_are_refused():
    torch.set_num_threads(2)
    with pytest.raises(ConfigError, match=r"workers\.compute_threads=2 instead"):
        check_bits(job([nn.ReLU()]), EXACT)
    check_bits(job([nn.ReLU()]), FAST)


@pytest.mark.parametrize(
    "generator", [random.Random(0), numpy.random.default_rng(0), torch.Generator()]
)
def test_a_generator_of_its_own_is_said(generator):
    class Data(list):
        pass

    layer, data = nn.ReLU(), Data([(torch.zeros(4), torch.zeros(4))])
    layer.rng = data.rng = generator
    first, second = check_bits(job([nn.ReLU(), layer], data=data), EXACT)
    assert first.startswith("Job.data (Data) has a random generator of its own, rng")
    assert second.startswith("layer 1 (ReLU) has a random generator of its own, rng")


class Transform:
    def __init__(self):
        self.rng = random.Random(0)

    def __call__(self, sample):
        return sample


class Transformed(list):
    transform = None


def test_a_generator_deep_inside_the_data_set_the_collate_or_the_loss_is_said():
    data = Transformed([(torch.zeros(4), torch.zeros(4))])
    data.transform = [Transform()]
    loss = nn.MSELoss()
    loss.rng = numpy.random.default_rng(0)
    lines = check_bits(
        Job(
            layers=[nn.ReLU()],
            loss=loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            data=Subset(data, [0]),
            collate=Transform(),
        ),
        EXACT,
    )
    assert [line.partition(":")[0] for line in lines] == [
        "Job.data (Subset) has a random generator of its own, dataset.transform.0.rng",
        "Job.collate (Transform) has a random generator of its own, rng",
        "Job.loss (MSELoss) has a random generator of its own, rng",
    ]


def test_torchs_own_generator_may_be_held():
    layer = nn.ReLU()
    layer.rng = torch.default_generator
    assert check_bits(job([layer]), EXACT) == []


class Noise(nn.Module):
    """Draws from Python's and NumPy's global generators, as e.g. LayerDrop does."""

    def forward(self, x):
        return x * random.random() + float(numpy.random.rand())


def test_python_and_numpy_numbers_follow_from_step_microbatch_and_layer_alone():
    stages = [Stage([Noise(), Noise()]), Stage([Noise()], first_layer=1)]
    x = torch.ones(3)
    [both] = stages[0].forward(4, 1, (x,))
    random.seed(99)
    [first] = Stage([Noise()]).forward(4, 1, (x,))
    numpy.random.seed(99)
    [second] = stages[1].forward(4, 1, (first,))
    assert torch.equal(both, second)
    [other] = Stage([Noise()]).forward(4, 2, (x,))
    assert not torch.equal(first, other)


COMPILED = jobs.SMALL.replace(
    "[nn.Linear(4, 4) for _ in range(NUM_LAYERS)]",
    '[nn.Linear(4, 4), torch.compile(nn.Linear(4, 4), backend="aot_eager")]',
)


def test_a_run_with_a_compiled_layer_ends_with_one_line_and_code_2(tmp_path):
    path = jobs.write(tmp_path, "compiled", COMPILED)
    refused = runs.threads(path, tmp_path / "run", *TWO_BY_TWO, steps=2)
    assert refused.exit_code == 2
    [line] = refused.stderr.splitlines()
    assert "layer 1 (OptimizedModule) is compiled by torch.compile" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, of dynamo
def test_in_fast_mode_it_trains_and_a_line_says_what_that_means(tmp_path):
    path = jobs.write(tmp_path, "compiled", COMPILED)
    fast = runs.settings("gradients.mode=fast")
    # Each holder of a compiled layer compiles it: one holder is enough.
    done = runs.finished(runs.threads(path, tmp_path / "run", *runs.layout("1x2"), *fast, steps=2))
    [line] = [line for line in done.lines if line.startswith("warning: ")]
    assert "layer 1 (OptimizedModule)" in line
    assert "bits depend on the layout" in line


def scripted(what):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        return torch.jit.script(what)


def from_a_file(what):
    """As torch.jit.load gives it: nothing can make Python of it again."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(what), file)
        return torch.jit.load(io.BytesIO(file.getvalue()))


def plus_one(x):
    return x + 1


def squares(output, target):
    return ((output - target) ** 2).mean()


SCRIPTED_FUNCTION = scripted(plus_one)


class CallsScript(nn.Module):
    def forward(self, x):
        return SCRIPTED_FUNCTION(x)


class HoldsScript(nn.Module):
    def __init__(self):
        super().__init__()
        self.function = SCRIPTED_FUNCTION

    def forward(self, x):
        return self.function(x)


def calls_script(output, target):
    return SCRIPTED_FUNCTION(output).mean()


@pytest.mark.parametrize(
    ("layers", "loss", "who"),
    [
        ([nn.ReLU(), from_a_file(nn.Linear(2, 2))], None, "layer 1 (RecursiveScriptModule)"),
        ([nn.Sequential(scripted(nn.Linear(2, 2)))], None, "layer 0, 0 (RecursiveScriptModule)"),
        ([HoldsScript()], None, "layer 0 (HoldsScript): function"),
        ([CallsScript()], None, "layer 0 (CallsScript): SCRIPTED_FUNCTION"),
        ([nn.ReLU()], scripted(squares), "Job.loss"),
        ([nn.ReLU()], scripted(nn.MSELoss()), "Job.loss"),
        ([nn.ReLU()], calls_script, "Job.loss: SCRIPTED_FUNCTION"),
    ],
)
def test_torchscript_is_refused_by_name_and_only_said_in_fast_mode(layers, loss, who):
    made = job(layers, loss=loss or nn.functional.mse_loss)
    with pytest.raises(ConfigError) as refused:
        check_bits(made, EXACT)
    assert str(refused.value).startswith(f"{who} is TorchScript: ")
    assert "set gradients.mode=fast" in str(refused.value)
    [line] = check_bits(made, FAST)
    assert line == f"{who} is TorchScript: the result's bits depend on the layout"


SCRIPTED = jobs.SMALL.replace(
    "def job():",
    """
import warnings

warnings.simplefilter("ignore", DeprecationWarning)


@torch.jit.script
def bend(x):
    return torch.tanh(x * 0.3) * torch.sigmoid(x) + x


class Bend(nn.Module):
    def forward(self, x):
        print(type(bend).__name__)
        return bend(x)


def job():""",
).replace(
    "[nn.Linear(4, 4) for _ in range(NUM_LAYERS)]",
    "[nn.Linear(4, 4), Bend(), torch.jit.script(nn.Linear(4, 4)), Bend()]",
)


def test_what_a_job_scripts_runs_as_plain_python_on_every_way_to_load_it(tmp_path):
    path = jobs.write(tmp_path, "scripted", SCRIPTED)
    plain = jobs.write(
        tmp_path,
        "plain",
        SCRIPTED.replace("@torch.jit.script", "").replace(
            "torch.jit.script(nn.Linear(4, 4))", "nn.Linear(4, 4)"
        ),
    )
    calm = runs.finished(runs.threads(plain, tmp_path / "calm", steps=4))
    faults = ["--fault", "kill 1.0 @ 1.B1", "--fault", "join @ 2"]
    done = runs.finished(runs.threads(path, tmp_path / "run", *TWO_BY_TWO, *faults, steps=4))
    assert len([e for e in done.events if isinstance(e, FaultFired)]) == 2
    assert "ScriptFunction" not in done.stdout
    assert done.sha256 == calm.sha256


@pytest.mark.skipif(
    "HOLDFAST_TEST_DEVICE" in os.environ,
    reason="a scripted module does not swap its parameters, as the test device wants",
)
def test_in_fast_mode_scripts_run_as_torchscript_and_a_line_says_so(tmp_path):
    path = jobs.write(tmp_path, "scripted", SCRIPTED)
    fast = runs.settings("gradients.mode=fast")
    done = runs.finished(runs.threads(path, tmp_path / "run", *TWO_BY_TWO, *fast, steps=2))
    assert "ScriptFunction" in done.stdout
    [line] = [line for line in done.lines if line.startswith("warning: ")]
    assert "is TorchScript: the result's bits depend on the layout" in line
