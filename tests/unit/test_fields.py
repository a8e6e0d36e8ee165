"""Nothing that comes over a wire leads to another file: it is refused where it is read."""

import json

import pytest

from holdfast.errors import ProtocolError
from holdfast.protocol import codec, messages

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
LOG = {"run": "ab.0", "dir": "/l", "mirror": "", "workers": ["0.0"], "borders": [0]}
ASSIGN = messages.Assign(
    stage=0,
    cut=[],
    checkpoint="",
    first_step=0,
    run_dir="/runs/a",
    beat_s=1.0,
    wait_s=1.0,
    part="stage-0.0a1b2c3d",
    faults=[],
    log=LOG | {"began": 0, "limit_bytes": 0},
)


def changed(message: messages.Message, **values: object) -> bytes:
    body = json.loads(codec.encode(message)[4:])
    assert values.keys() <= body.keys()
    return json.dumps(body | values).encode()


@pytest.mark.parametrize("message", [PART, ASSIGN], ids=lambda message: type(message).__name__)
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
    *((ASSIGN, "run_dir", text) for text in ("", "runs/a", "../a", "/a\0b")),
    *((ASSIGN, "checkpoint", text) for text in ("runs/a", "..", "/a\0b")),
    *((ASSIGN, "log", LOG | {"workers": [text]}) for text in ELSEWHERE),
    (ASSIGN, "log", LOG | {"dir": "relative"}),
    (ASSIGN, "log", LOG | {"mirror": "relative"}),
    (ASSIGN, "log", LOG | {"run": "../x"}),
    (ASSIGN, "log", {"run": "ab.0"}),
    (ASSIGN, "log", LOG | {"borders": [-1]}),
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
