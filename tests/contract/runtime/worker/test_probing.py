"""Benchmarks between two steps: done when ordered, told to the coordinator, felt by nobody else."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from holdfast.cluster import WorkerId
from holdfast.protocol import messages
from holdfast.protocol.records import LinkProbe
from holdfast.runtime.probe.emulation import EmulatedDevice
from holdfast.runtime.probe.probing import Prober
from holdfast.runtime.probe.transfer_times import summed_up
from holdfast.transport.base import Channel, Tag, TransferTime
from holdfast.transport.local.transport import LocalHub, LocalTransport

ME, PEER, THIRD = WorkerId(0, 0), WorkerId(0, 1), WorkerId(1, 0)
DELAY_S = 0.05
LIMIT_S = 20.0


class Site:
    def __init__(self, device: dict[str, float], slowdown: Callable[[float], float]) -> None:
        hub = LocalHub()
        self.transports = {w: LocalTransport(w, hub) for w in (ME, PEER, THIRD)}
        self.told: list[messages.Message] = []
        self.prober = Prober(
            ME, self.transports[ME], EmulatedDevice(device), slowdown, self.told.append
        )

    def arrived(self, worker: WorkerId) -> list[TransferTime]:
        return self.transports[worker].take_transfers()


@pytest.fixture
def make() -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make_site(
        device: dict[str, float] | None = None, slowdown: Callable[[float], float] = lambda _: 0.0
    ) -> Site:
        sites.append(Site(device or {}, slowdown))
        return sites[-1]

    yield make_site
    for site in sites:
        for transport in site.transports.values():
            transport.close()


def probe(step: int, *links: tuple[WorkerId, int], compute: bool = False) -> messages.Probe:
    rows = [LinkProbe(str(to), number) for to, number in links]
    return messages.Probe(step=step, compute=compute, links=rows)


def probed(site: Site) -> list[messages.Probed]:
    return [message for message in site.told if isinstance(message, messages.Probed)]


def test_without_an_order_nothing_is_measured(make) -> None:
    site = make()
    site.prober.begin_step(0)
    assert site.told == []
    assert site.arrived(PEER) == []


def test_a_benchmark_is_run_once_in_the_step_it_is_ordered_for(make) -> None:
    site = make()
    site.prober.order(probe(3, compute=True))
    for step in (1, 2, 3, 4, 5):
        site.prober.begin_step(step)
    assert [(one.worker, one.step) for one in probed(site)] == [("0.0", 3)]
    assert probed(site)[0].wall_s > 0
    assert probed(site)[0].cpu_s > 0


def test_an_order_that_comes_too_late_for_its_step_is_carried_out_in_the_next(make) -> None:
    site = make()
    site.prober.order(probe(3, (PEER, 0), compute=True))
    site.prober.begin_step(6)
    assert [one.step for one in probed(site)] == [6]
    assert len(site.arrived(PEER)) == 3


def test_links_are_measured_in_their_rounds(make) -> None:
    site = make()
    site.prober.order(probe(2, (PEER, 0), (THIRD, 1)))
    site.prober.begin_step(2)
    assert (len(site.arrived(PEER)), len(site.arrived(THIRD))) == (3, 0)
    site.prober.begin_step(3)
    assert (len(site.arrived(PEER)), len(site.arrived(THIRD))) == (0, 3)
    assert site.told == [], "whoever gets them tells of them"


def test_what_is_sent_is_timed_and_dropped(make) -> None:
    site = make()
    site.transports[ME].shape_link(PEER, delay_s=DELAY_S)
    site.prober.order(probe(0, (PEER, 0)))
    site.prober.begin_step(0)
    site.transports[ME].flush(LIMIT_S)
    rows = summed_up(site.arrived(PEER))
    assert [(source, kind, count) for source, kind, count, *_ in rows] == [("0.0", "probe", 3)]
    assert rows[0][4] >= DELAY_S
    assert not site.transports[PEER].has(ME, Tag(Channel.PROBE, 0))


def test_links_that_were_to_be_measured_are_forgotten_when_the_members_change(make) -> None:
    """Who is gone cannot be sent to: that would break off a step for nothing."""
    site = make()
    site.prober.order(probe(2, (PEER, 0), (THIRD, 1), compute=True))
    site.transports[THIRD].close()
    site.prober.forget()
    for step in (2, 3):
        site.prober.begin_step(step)
    assert site.arrived(PEER) == []
    assert len(probed(site)) == 1, "its own arithmetic is there as before"


def test_a_benchmark_is_as_slow_as_an_injected_fault_makes_its_worker(make) -> None:
    device = {"F": 0.01}
    usual, slow = make(device), make(device, lambda seconds: 2 * seconds)
    for site in (usual, slow):
        site.prober.order(probe(0, compute=True))
        site.prober.begin_step(0)
    assert probed(usual)[0].wall_s >= 0.02
    assert probed(slow)[0].wall_s >= 0.06


def test_no_random_number_of_the_job_is_drawn(make) -> None:
    site, before = make(), torch.get_rng_state()
    site.prober.order(probe(0, (PEER, 0), compute=True))
    site.prober.begin_step(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_orders_may_come_while_a_step_begins(make) -> None:
    """From the control thread; each is carried out once, whenever it came."""
    site = make({"F": 0.0001})
    num_orders = 200

    def order() -> None:
        for step in range(num_orders):
            site.prober.order(probe(step, (PEER, 0)))

    thread = threading.Thread(target=order)
    thread.start()
    step, arrived = 0, 0
    while thread.is_alive() or step < num_orders:
        site.prober.begin_step(min(step, num_orders))
        step, arrived = step + 1, arrived + len(site.arrived(PEER))
    thread.join(LIMIT_S)
    site.prober.begin_step(num_orders)
    assert arrived + len(site.arrived(PEER)) == 3 * num_orders


# --- what came in, as it is reported ---


def test_transfers_are_summed_up_by_source_and_purpose() -> None:
    rows = summed_up(
        [
            TransferTime(PEER, Channel.ACTIVATION, 10, 0.1),
            TransferTime(PEER, Channel.GRADIENT, 20, 0.3),
            TransferTime(PEER, Channel.ACTIVATION, 30, 0.2),
            TransferTime(THIRD, Channel.PARTIAL, 5, 0.5),
            TransferTime(THIRD, Channel.REDUCED, 5, 0.7),
            TransferTime(THIRD, Channel.PROBE, 7, 0.9),
            TransferTime(THIRD, Channel.UPDATE, 7, 9.0),
        ]
    )
    assert rows == [
        ("0.1", "pipeline", 3, 60, 0.2),
        ("1.0", "probe", 1, 7, 0.9),
        ("1.0", "reduction", 2, 10, pytest.approx(0.6)),
    ]
