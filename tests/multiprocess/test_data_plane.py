"""Real processes whose data connections break, or are attacked: nobody is lost, no bit changes.

HOLDFAST_SEED repeats the random moments; it is printed.
"""

import random
import resource
import socket

import pytest
import torch

from helpers import jobs, runs
from helpers.connections import cut_often, data_ports, limit_descriptors
from helpers.live import PACE_S, LiveRun, assert_nothing_left, paced, resident_bytes
from helpers.seed import SEED
from holdfast.auth.handshake import WORKER_ROLE, Caller, Identity, call
from holdfast.auth.secret import SECRET_FILE, last_generation, read_secret
from holdfast.auth.stamps import Stamps
from holdfast.observability.events import CheckpointSaved, StepFinished, WorkerLost
from holdfast.transport.base import Channel, Tag
from holdfast.transport.frame import (
    Note,
    checksum_of,
    encode_frame,
    encode_note,
    numbered,
    payload_view,
)
from holdfast.transport.tcp.greeting import SessionHello, encode_hello

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
STEPS, MICROBATCHES = 40, 6
AT_ONCE = 5  # cuts
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
NUM_CALLS, MOST_GROWTH_BYTES = 5000, 100 << 20  # they bring about 1 GB
PATIENT = runs.settings("workers.heartbeat_timeout_s=30")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    numbers = {"steps": STEPS, "microbatches": MICROBATCHES}
    return runs.finished(runs.threads(jobs.mixed(folder), folder / "run", **numbers))


@pytest.fixture
def live(tmp_path):
    """2 x 2 workers in the middle of a run that is slow until it is released."""
    words = ["train", str(paced(tmp_path)), *runs.layout("2x2"), "--steps", str(STEPS)]
    words += ["--microbatches", str(MICROBATCHES), *PATIENT]
    started = LiveRun(tmp_path, *words, *runs.settings("checkpoint.every_steps=2"))
    started.wait_for_steps(1)
    yield started
    started.close()


def assert_nobody_noticed(live, undisturbed):
    live.release()
    run = runs.finished(live.outcome())
    assert run.sha256 == undisturbed.sha256
    assert run.losses == undisturbed.losses
    assert not [event for event in run.events if isinstance(event, WorkerLost)]
    assert not run.summary["went_back"]
    assert_nothing_left(run)


@pytest.mark.wide
@pytest.mark.parametrize("num_cuts", [5, 200])
def test_r4_no_worker_is_lost_for_a_broken_connection(live, undisturbed, num_cuts):
    dice = random.Random(SEED)
    print(f"HOLDFAST_SEED={SEED}")  # noqa: T201
    num_resets = 0
    for _ in range(num_cuts // AT_ONCE):
        num_resets += cut_often(live, AT_ONCE, dice, pause_s=0.05 if num_cuts > AT_ONCE else 0.2)
        if len(live.all_of(StepFinished)) > STEPS - 10:
            live.slow_down(1.0)  # where cutting takes long, all must not be trained before
    assert 0 < num_resets < num_cuts
    live.wait_for_more_steps(1)
    assert_nobody_noticed(live, undisturbed)


@pytest.mark.wide
def test_s4_two_thousand_idle_connections_stop_neither_training_nor_checkpoints(live, undisturbed):
    limit_descriptors([live.launcher.pid, *live.pids], 1024)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    port = min(data_ports(live.workers.values()).values())
    strangers = []
    try:
        for _ in range(2000):
            strangers.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        num_saved = len(live.all_of(CheckpointSaved))
        live.wait_for_more_steps(4)
        live.wait_for(CheckpointSaved, num_saved + 1)
        assert cut_often(live, 4, random.Random(SEED), pause_s=0.1) <= 4
        live.wait_for_more_steps(2)
    finally:
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert_nobody_noticed(live, undisturbed)


def nonsense(dice: random.Random) -> bytes:
    """What a stranger may say: noise, or a handshake that was cut, changed, repeated, turned."""
    hello = Caller(dice.randbytes(32), Identity("worker", "0.1"), "worker").hello
    kind = dice.randrange(5)
    if kind == 0:
        return dice.randbytes(dice.randrange(400))
    if kind == 1:
        return hello[: dice.randrange(len(hello))]
    if kind == 2:
        changed = bytearray(hello)
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        return bytes(changed)
    if kind == 3:
        return hello * dice.randint(2, 4)
    parts = [hello, dice.randbytes(37), b"HFtn" + bytes(128)]
    dice.shuffle(parts)
    return b"".join(parts)


@pytest.mark.wide
def test_s4_five_thousand_malformed_greetings_change_nothing(live, undisturbed):
    dice = random.Random(SEED)
    print(f"HOLDFAST_SEED={SEED}")  # noqa: T201
    ports = sorted(data_ports(live.workers.values()).values())
    assert len(ports) == 4
    live.slow_down(0.5)  # all must not be trained before
    for _ in range(5000):
        with socket.create_connection(("127.0.0.1", dice.choice(ports)), timeout=60) as stranger:
            try:
                stranger.sendall(nonsense(dice))
            except ConnectionError:
                continue
    live.slow_down(PACE_S)
    live.wait_for_more_steps(2)
    assert_nobody_noticed(live, undisturbed)


def message(dice: random.Random, stamps: Stamps) -> bytes:
    """A message as it travels, that nobody waits for; or one that breaks the rules."""
    if dice.random() < 0.2:
        return stamps.stamped(encode_note(dice.choice(list(Note))))
    tag = Tag(dice.choice(list(Channel)), dice.randrange(2 * STEPS), dice.randrange(MICROBATCHES))
    tensor = torch.ones(dice.choice((0, 5, 1000, 2**16)), dtype=dice.choice(DTYPES))
    payload = payload_view(tensor)
    checksum = checksum_of(payload) if dice.random() < 0.8 else dice.getrandbits(64)
    epoch, sent_ns = dice.choice((0, 1, 2, 2**31)), dice.choice((0, 2**62))
    header = encode_frame(epoch, tag, tensor, 1 << 30, sent_ns=sent_ns, checksum=checksum)
    body = bytearray(numbered(header, dice.choice((1, 2, 3, 2**64 - 1))))
    for _ in range(dice.choice((0, 0, 1, 3))):  # it lies
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    data = bytearray(stamps.stamped(bytes(body)) + bytes(payload))
    for _ in range(dice.choice((0, 0, 1))):  # it is changed on the way
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(data[: dice.randrange(len(data))] if dice.random() < 0.2 else data)


def misbehave(port: int, secret: bytes, me: Identity, dice: random.Random) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as member:
        _, stamps = call(member, secret, me, WORKER_ROLE, 60.0)
        try:
            hello = SessionHello(dice.randrange(3), dice.randrange(3), dice.random() < 0.3)
            member.sendall(stamps.stamped(encode_hello(hello)))
            first = message(dice, stamps)
            member.sendall(first * dice.choice((1, 2)))
            for _ in range(2):
                member.sendall(message(dice, stamps))
        except ConnectionError:
            return  # it was hung up on already


@pytest.mark.wide
def test_s5_fifteen_thousand_malformed_frames_of_a_worker_change_nothing(live, undisturbed):
    """It proves to be a worker of the run, of which nobody has heard."""
    dice = random.Random(SEED)
    print(f"HOLDFAST_SEED={SEED}")  # noqa: T201
    secret = read_secret(live.run_dir / SECRET_FILE, "the test's")
    me = Identity(WORKER_ROLE, "9.9", last_generation(live.run_dir))
    ports = sorted(data_ports(live.workers.values()).values())
    pids, before = list(live.workers.values()), []
    live.slow_down(0.5)
    for number in range(NUM_CALLS):
        if number == NUM_CALLS // 10:  # by then they have what they need for answering
            before = list(map(resident_bytes, pids))
        misbehave(dice.choice(ports), secret, me, dice)
    live.slow_down(PACE_S)
    live.wait_for_more_steps(2)
    grown = [now - then for now, then in zip(map(resident_bytes, pids), before, strict=True)]
    assert max(grown) < MOST_GROWTH_BYTES, f"it grew by {grown} bytes"
    assert_nobody_noticed(live, undisturbed)
