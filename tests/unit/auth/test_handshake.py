"""Both sides prove who they are; whatever else is sent ends in a closed connection."""

import contextlib
import socket
import threading
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.auth.handshake import (
    AGENT,
    COORDINATOR,
    JOINER,
    MOST_GENERATION,
    WORKER_ROLE,
    Answerer,
    Caller,
    Identity,
    answer,
    call,
)
from holdfast.errors import HandshakeFailed, ProtocolError

LIMIT_S = 60.0
SECRET, OTHER = bytes(range(32)), bytes(32)
ME = Identity(WORKER_ROLE, "1.0", 3)
RUN = Identity(COORDINATOR, "", 3)

names = st.builds("{}.{}".format, st.integers(0, 9999), st.integers(0, 9999))
generations = st.integers(0, MOST_GENERATION)
identities = st.one_of(
    st.builds(Identity, st.just(WORKER_ROLE), names, generations),
    st.builds(Identity, st.just(JOINER), st.one_of(st.just(""), names), generations),
    st.builds(Identity, st.sampled_from([COORDINATOR, AGENT]), st.just(""), generations),
)


def exchange(caller: Caller, answerer: Answerer) -> list[bytes]:
    """All three messages; both sides are done."""
    hello = caller.hello
    answered = answerer.feed(hello)
    proof = caller.feed(answered)
    assert answerer.feed(proof) == b""
    return [hello, answered, proof]


@given(me=identities, other=identities, secret=st.binary(min_size=32, max_size=32))
def test_each_side_learns_who_the_other_is(me, other, secret):
    caller, answerer = Caller(secret, me, other.role), Answerer(secret, other)
    messages = exchange(caller, answerer)
    assert (caller.peer, answerer.peer) == (other, me)
    assert (caller.wanted, answerer.wanted) == (0, 0)
    assert not any(secret in message for message in messages)


def test_s1_what_follows_is_stamped_with_keys_that_only_these_two_have():
    caller, answerer = Caller(SECRET, ME, COORDINATOR), Answerer(SECRET, RUN)
    other = Caller(SECRET, ME, COORDINATOR)
    exchange(other, Answerer(SECRET, RUN))
    assert (caller.stamps, answerer.stamps) == (None, None)
    exchange(caller, answerer)
    assert answerer.stamps.opened(caller.stamps.stamped(b"to it")) == b"to it"
    assert caller.stamps.opened(answerer.stamps.stamped(b"and back")) == b"and back"
    for stamped in (other.stamps.stamped(b"x"), answerer.stamps.stamped(b"x")):
        with pytest.raises(ProtocolError, match="wrong stamp"):
            answerer.stamps.opened(stamped)


@given(cuts=st.lists(st.integers(1, 40), max_size=20))
def test_it_may_come_in_pieces(cuts):
    caller, answerer = Caller(SECRET, ME, COORDINATOR), Answerer(SECRET, RUN)

    def feed(side, data):
        out = b""
        for size in [*cuts, len(data)]:
            out += side.feed(data[:size])
            data = data[size:]
            if not data:
                break
        return out

    feed(answerer, feed(caller, feed(answerer, caller.hello)))
    assert (caller.peer, answerer.peer) == (RUN, ME)


@given(which=st.integers(0, 2), position=st.integers(0), flip=st.integers(1, 255))
def test_s1_any_change_of_any_byte_fails(which, position, flip):
    """Whoever changes the caller's hello is noticed by the caller: the answer is for another."""
    caller, answerer = Caller(SECRET, ME, COORDINATOR), Answerer(SECRET, RUN)

    def changed(number, message):
        if number != which:
            return message
        at = position % len(message)
        return message[:at] + bytes([message[at] ^ flip]) + message[at + 1 :]

    def through() -> None:
        answered = answerer.feed(changed(0, caller.hello))
        proof = caller.feed(changed(1, answered))
        answerer.feed(changed(2, proof))

    with pytest.raises(HandshakeFailed):
        through()
    assert caller.peer is None or answerer.peer is None
    assert which != 1 or caller.peer is None
    assert answerer.peer is None


@given(which=st.integers(0, 2), keep=st.integers(0))
def test_s1_a_message_that_is_cut_off_proves_nothing(which, keep):
    caller, answerer = Caller(SECRET, ME, COORDINATOR), Answerer(SECRET, RUN)
    reading, message = answerer, caller.hello
    for _ in range(which):
        message = reading.feed(message)
        reading = caller if reading is answerer else answerer
    assert reading.feed(message[: keep % len(message)]) == b""
    assert reading.peer is None
    assert reading.wanted == len(message) - keep % len(message)


def test_s1_what_was_recorded_proves_nothing_later():
    recorded = exchange(Caller(SECRET, ME, COORDINATOR), Answerer(SECRET, RUN))
    answerer = Answerer(SECRET, RUN)
    answerer.feed(recorded[0])
    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        answerer.feed(recorded[2])
    caller = Caller(SECRET, ME, COORDINATOR)
    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        caller.feed(recorded[1])


@given(first=st.permutations([0, 1, 2]))
def test_s1_messages_in_another_order_prove_nothing(first):
    assume(list(first) != [0, 1, 2])
    recorded = exchange(Caller(SECRET, ME, COORDINATOR), Answerer(SECRET, RUN))
    answerer = Answerer(SECRET, RUN)
    with pytest.raises(HandshakeFailed):
        answerer.feed(b"".join(recorded[number] for number in first))
    assert answerer.peer is None


def test_s1_a_mirror_proves_nothing():
    """Also between two that are both called and callers: workers, on their data ports."""
    mirror = Identity(WORKER_ROLE, "1.0", 3)
    caller, answerer = Caller(SECRET, mirror, WORKER_ROLE), Answerer(SECRET, mirror)
    with pytest.raises(HandshakeFailed):
        caller.feed(caller.hello + bytes(32))
    answered = answerer.feed(caller.hello)
    reflected = answered[:5].replace(b"HFan", b"HFpr") + answered[-32:]
    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        answerer.feed(reflected)


def test_s1_another_secret_is_noticed_by_who_calls_and_by_who_is_called(monkeypatch):
    caller, answerer = Caller(OTHER, ME, COORDINATOR), Answerer(SECRET, RUN)
    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        caller.feed(answerer.feed(caller.hello))
    monkeypatch.setattr("secrets.token_bytes", bytes)  # all that is said is the same
    forger, answerer = Caller(OTHER, ME, COORDINATOR), Answerer(SECRET, RUN)
    answerer.feed(forger.hello)
    proof = forger.feed(Answerer(OTHER, RUN).feed(forger.hello))
    with pytest.raises(HandshakeFailed, match="does not know the secret"):
        answerer.feed(proof)
    assert answerer.peer is None


def test_s2_somebody_in_another_role_is_not_taken_for_the_coordinator():
    caller = Caller(SECRET, ME, COORDINATOR)
    answerer = Answerer(SECRET, Identity(WORKER_ROLE, "0.0", 3))
    with pytest.raises(HandshakeFailed, match="a worker answers; expected a coordinator"):
        caller.feed(answerer.feed(caller.hello))
    assert caller.peer is None


@given(st.binary(max_size=200))
def test_s1_noise_is_refused(data):
    for side in (Answerer(SECRET, RUN), Caller(SECRET, ME, COORDINATOR)):
        with contextlib.suppress(HandshakeFailed):
            assert side.feed(data) == b"" or len(data) == 58
        assert side.peer is None


BAD = [("root", "", 1), ("worker", "", 1), ("worker", "../x", 1), ("agent", "0.0", 1)]
BAD += [("coordinator", "0.0", 1), ("joiner", "x", 1), ("worker", "0.0", -1)]
BAD += [("worker", "0.0", 1 << 32), ("worker", "0.0", True)]


@pytest.mark.parametrize(("role", "name", "generation"), BAD)
def test_there_is_no_other_identity(role, name, generation):
    with pytest.raises(ProtocolError):
        Identity(role, name, generation)


def test_a_secret_has_32_bytes():
    with pytest.raises(ValueError, match="expected 32"):
        Answerer(b"short", RUN)


# --- over sockets ---


def test_over_sockets_both_are_told_and_their_own_limits_are_as_before():
    one, two = socket.socketpair()
    found = []
    with one, two:
        one.settimeout(7.0)
        thread = threading.Thread(target=lambda: found.append(answer(two, SECRET, RUN, LIMIT_S)[0]))
        thread.start()
        assert call(one, SECRET, ME, COORDINATOR, LIMIT_S)[0] == RUN
        thread.join(LIMIT_S)
        assert found == [ME]
        assert one.gettimeout() == 7.0
        one.sendall(b"first message")
        assert two.recv(100) == b"first message"  # nothing was taken that is no part of it


def test_s4_a_byte_now_and_then_does_not_make_the_limit_longer():
    one, two = socket.socketpair()
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.02):
            try:
                one.sendall(b"H")
            except OSError:
                return

    with one, two:
        thread = threading.Thread(target=drip)
        begun_s = time.monotonic()  # before the first byte: it may take long until they are read
        thread.start()
        with pytest.raises(HandshakeFailed):
            answer(two, SECRET, RUN, 0.3)
        stop.set()
        thread.join(LIMIT_S)
        assert time.monotonic() - begun_s >= 0.3


def test_who_closes_has_not_proven_anything():
    one, two = socket.socketpair()
    with two:
        one.close()
        with pytest.raises(HandshakeFailed):
            call(two, SECRET, ME, COORDINATOR, 5.0)
