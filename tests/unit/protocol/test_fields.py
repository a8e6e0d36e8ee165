"""Nothing that comes over a wire leads to another file: it is refused where it is read."""

import json
import re

import pytest

from holdfast.config import RunConfig
from holdfast.errors import ProtocolError
from holdfast.protocol import codec, messages
from holdfast.protocol.records import Address, LogOrder

ELSEWHERE = ["../x", "/etc", "a/b", "..", ".", "", "stage-0/..", "stage-0\0"]
PART = messages.CheckpointPart(
    worker="0.0",
    step=4,
    directory="stage-0.0a1b2c3d",
    layers=[0, 1],
    digests={"model.safetensors": "5a" * 32},
    sizes={},
    hashes={},
    state={},
    took_s=0.1,
    copy_s=0.0,
)
LOG = LogOrder("ab.0", 0, ["0.0"], [0], 0)
ASSIGN = messages.Assign(
    stage=0,
    cut=[],
    checkpoint="",
    first_step=0,
    beat_s=1.0,
    wait_s=1.0,
    part="stage-0.0a1b2c3d",
    faults=[],
    log=LOG,
)


START = messages.StartWorkers(
    workers=["0.0"],
    job="/job.py",
    job_sha256="5a" * 32,
    run_dir="/runs/a..b/.c",
    resumed="/runs/b/checkpoints/step-00000004",
    config=RunConfig(),
)
REPLAY = messages.Replay(
    epoch=2,
    stages=[1],
    lost=[1],
    cut=[1],
    checkpoint="step-00000004",
    first_step=4,
    version=6,
    crew=["0.0"],
    addresses={"0.0": Address("localhost", 1)},
    into="step-00000006-from-stage-1-2",
    log=LOG,
    keepers={"10.0.0.2": [Address("10.0.0.2", 1)]},
    beat_s=1.0,
    wait_s=1.0,
)
NO_PATHS = ["runs/a", "../a", "/a/..", "/../a", "/a/../b", "/a/./b", "/.", "//a", "/a//b", "/a/"]
NO_PATHS += ["/a\0b", "/" + "a" * 5000]


def changed(message: messages.Message, **values: object) -> bytes:
    body = json.loads(codec.encode(message)[4:])
    assert values.keys() <= body.keys()
    return json.dumps(body | values).encode()


@pytest.mark.parametrize(
    "message", [PART, ASSIGN, START, REPLAY], ids=lambda message: type(message).__name__
)
def test_what_we_send_is_read(message):
    assert codec.decode(changed(message)) == message


BAD = [
    *((PART, "directory", text) for text in ELSEWHERE),
    *((PART, "worker", text) for text in ELSEWHERE),
    *((PART, "digests", {text: "5a" * 32}) for text in ELSEWHERE),
    (PART, "digests", {"model.safetensors": "5a"}),
    (PART, "step", -1),
    (PART, "step", 1 << 40),
    (PART, "step", True),
    (PART, "layers", [-1]),
    (ASSIGN, "stage", -1),
    (ASSIGN, "stage", 10_000),
    *((START, "run_dir", text) for text in ("", *NO_PATHS)),
    *((START, "resumed", text) for text in NO_PATHS),
    *((START, "job", text) for text in NO_PATHS),
    *((ASSIGN, "checkpoint", text) for text in ("runs/a", "/runs/a", "..", "step-1", "resumed/..")),
    *((REPLAY, "checkpoint", text) for text in ("/runs/a", "..", "step-00000001/..")),
    *((REPLAY, "into", text) for text in ("", "/runs/a", "..", "step-00000001", "resumed")),
    *((ASSIGN, "log", LOG._replace(workers=[text])) for text in ELSEWHERE),
    (ASSIGN, "log", LOG._replace(run="../x")),
    (ASSIGN, "log", ["ab.0"]),
    (ASSIGN, "log", {}),
    (ASSIGN, "log", LOG._replace(boundaries=[-1])),
]


@pytest.mark.parametrize(("message", "name", "value"), BAD)
def test_s5_a_field_that_leads_elsewhere_is_refused_where_it_is_read(message, name, value):
    with pytest.raises(ProtocolError, match=f"{type(message).__name__}.{name}"):
        codec.decode(changed(message, **{name: value}))


@pytest.mark.parametrize("pid", [0, -1, True, 1 << 40, "1"])
def test_s5_a_process_id_is_above_zero(pid):
    started = messages.WorkerStarted(worker="0.0", pid=1)
    with pytest.raises(ProtocolError, match="pid"):
        codec.decode(changed(started, pid=pid))


# --- rows ---

REPORT = messages.StepReport(
    worker="0.0",
    step=3,
    losses=[],
    num_tokens=1,
    norm=1.0,
    clipped=False,
    skipped=False,
    taken_back=False,
    nonfinite=False,
    operations=[],
    transfers=[],
)
TELL = messages.Inventory(
    worker="0.0",
    epoch=2,
    reduced=0,
    oldest=0,
    attempt=0,
    progress={},
    kept=[],
    verdicts={},
    kept_bytes=0,
    done=0,
    saving=0,
    commits=[],
)
REPLAYED = messages.Replayed(
    worker="0.0", epoch=2, num_operations=0, num_bytes=0, took_s=0.0, losses=[]
)
COSTS = messages.LayerCosts(worker="0.0", forward_s=[], backward_s=[], sizes=[])
BEAT = messages.Resumed(worker="0.0", epoch=1, at_s=0.0)
HELLO = messages.Hello(
    worker="0.0",
    pid=1,
    fingerprint={},
    traits={},
    num_layers=1,
    layer_hashes=["5a" * 16],
    cut=[],
    host="127.0.0.1",
    port=1,
    device_index=0,
    device_bytes=0,
)
INFINITE, NAN, HUGE = float("inf"), float("nan"), 10**400
BAD_ROWS = [
    (REPORT, "operations", [["x"]], "operations[0]"),
    (REPORT, "operations", [["0F0", 0, 1, 0, 1], ["F0", 0, 1, 0, 1]], "operations[1].op"),
    (REPORT, "operations", [["0F0", 0, NAN, 0, 1]], "operations[0].end_s"),
    (REPORT, "operations", [["0F0", -1, 0, 0, 1]], "operations[0].start_s"),
    (REPORT, "operations", [["0F0", 0, 1, 0, 1.5]], "operations[0].elements"),
    (REPORT, "operations", [{"op": "0F0"}], "operations[0]"),
    (REPORT, "operations", {}, "operations"),
    (REPORT, "transfers", [[1]], "transfers[0]"),
    (REPORT, "transfers", [["x", "probe", 1, 1, 0]], "transfers[0].source"),
    (REPORT, "transfers", [["0.0", "other", 1, 1, 0]], "transfers[0].purpose"),
    (REPORT, "transfers", [["0.0", "probe", 1, 1, INFINITE]], "transfers[0].moved_s"),
    (REPORT, "losses", [[0]], "losses[0]"),
    (REPORT, "losses", [[-1, 0.5, 1.0]], "losses[0].microbatch"),
    (REPORT, "losses", [[0, "x", 1.0]], "losses[0].loss"),
    (REPORT, "losses", [[0, None, 1.0]], "losses[0].loss"),
    (REPORT, "losses", [[0, 0.5]], "losses[0]"),
    (REPORT, "losses", [[0, 0.5, None]], "losses[0].weight"),
    (REPORT, "norm", HUGE, "norm"),
    (REPORT, "num_tokens", -1, "num_tokens"),
    (TELL, "progress", {"x": 1}, "progress"),
    (TELL, "progress", {"00": 1}, "progress"),
    (TELL, "progress", {"0": 9}, "progress['0']"),
    (TELL, "kept", [[0, [1]]], "kept[0]"),
    (TELL, "kept", [[0, 1, 2]], "kept[0].activations"),
    (TELL, "verdicts", {"0": [1.0]}, "verdicts['0']"),
    (TELL, "verdicts", {"0": ["x", None, False]}, "verdicts['0'].norm"),
    (TELL, "verdicts", {"-1": [1.0, None, False]}, "verdicts"),
    (TELL, "reduced", -3, "reduced"),
    (REPLAYED, "losses", [[1]], "losses[0]"),
    (REPLAYED, "losses", [[1, [[1]], 0]], "losses[0].losses[0]"),
    (REPLAYED, "took_s", INFINITE, "took_s"),
    (COSTS, "forward_s", [NAN], "forward_s[0]"),
    (COSTS, "forward_s", [-1.0], "forward_s[0]"),
    (COSTS, "backward_s", [[]], "backward_s[0]"),
    (COSTS, "sizes", [[1, 1, 1, 1]], "sizes[0]"),
    (COSTS, "sizes", [[1, 1, 1, 1, 1], [1, 1, 1, 1, -1]], "sizes[1].inner_bytes"),
    (COSTS, "sizes", [[1 << 54, 1, 1, 1, 1]], "sizes[0].held_bytes"),
    (HELLO, "device_bytes", -1, "device_bytes"),
    (HELLO, "device_bytes", 1e9, "device_bytes"),
    (HELLO, "device_bytes", None, "device_bytes"),
    (HELLO, "device_index", -1, "device_index"),
    (BEAT, "at_s", NAN, "at_s"),
    (PART, "sizes", {"model.safetensors": -1}, "sizes['model.safetensors']"),
    (PART, "hashes", {"x": "5a" * 16}, "hashes"),
    (PART, "hashes", {"0": "5a"}, "hashes['0']"),
    (PART, "state", {"optimizer": []}, "state['optimizer']"),
]


@pytest.mark.parametrize(("message", "name", "value", "where"), BAD_ROWS)
def test_s5_a_row_that_is_none_is_refused_with_its_place_and_its_value(message, name, value, where):
    with pytest.raises(ProtocolError, match=re.escape(f"{type(message).__name__}.{where}=")):
        codec.decode(changed(message, **{name: value}))
