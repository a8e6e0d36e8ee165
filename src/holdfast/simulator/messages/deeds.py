"""What happens to a simulated run from outside: deaths, partitions, full disks, crashes."""

from collections.abc import Callable
from functools import partial

from holdfast.simulator.messages.coordinator_host import CoordinatorHost
from holdfast.simulator.messages.scenario import Deed
from holdfast.simulator.messages.virtual_run import VirtualRun
from holdfast.simulator.messages.worker.process import KILLED


def schedule_deeds(world: VirtualRun) -> None:
    for deed in world.scenario.deeds:
        if deed.of_stimuli:
            world.crashes[int(deed.at)] = _crash_at_stimulus(world, float(deed.words[0]))
        elif deed.upon:
            world.when(deed.upon, deed.count, partial(world.time.after, deed.at, do, world, deed))
        else:
            world.time.at(deed.at, do, world, deed)


def _crash_at_stimulus(world: VirtualRun, after_s: float) -> Callable[[], None]:
    """The host dies by itself when this has been called."""
    return lambda: world.time.after(after_s, world.take_over)


def do(world: VirtualRun, deed: Deed) -> None:
    if world.is_over:
        return
    world.note("deed", str(deed))
    _DEEDS[deed.what](world, *deed.words)


def _kill(world: VirtualRun, name: str) -> None:
    if (process := world.process_of(name)) is not None:
        process.end(KILLED)


def _stop(world: VirtualRun, name: str, seconds: str) -> None:
    process = world.process_of(name)
    if process is not None and not process.is_stopped:
        process.stop_process()
        world.time.after(float(seconds), process.wake_process)


def _hang_up(world: VirtualRun, name: str) -> None:
    """The connection breaks; both ends live."""
    process = world.process_of(name)
    line = None if process is None else process.link.line
    if line is not None:
        line.leave()
        assert process is not None
        process.link.hung_up(line)


def _cut(world: VirtualRun, one: str, other: str, seconds: str) -> None:
    world.network.cut(one, other)
    world.time.after(float(seconds), world.network.mend, one, other)


def _full(world: VirtualRun, seconds: str) -> None:
    world.shelf.is_full = True
    world.time.after(float(seconds), _has_room, world)


def _has_room(world: VirtualRun) -> None:
    world.shelf.is_full = False


def _crash(world: VirtualRun, after_s: str) -> None:
    host = world.leader
    if host.is_alive and not host.coordinator.starting and world.shelf.journal:
        host.die()
        world.time.after(float(after_s), world.take_over)


def _pause(world: VirtualRun, seconds: str, after_s: str) -> None:
    """A standby may take over meanwhile; the one before it wakes up and knows nothing of that."""
    host = world.leader
    if host.is_alive and not host.coordinator.starting and world.shelf.journal:
        host.pause()
        world.time.after(float(after_s), _stand_in, world, host)
        world.time.after(float(seconds), host.go_on)


def _stand_in(world: VirtualRun, host: CoordinatorHost) -> None:
    if host.is_paused and world.leader is host:
        world.take_over()


def _interrupt(world: VirtualRun) -> None:
    host = world.leader
    if host.is_alive and not host.is_paused:
        host.stimulate(lambda: host.coordinator.interrupt(world.time.now_s))


def _drain(world: VirtualRun, machine: str) -> None:
    host = world.leader
    if host.is_alive and not host.is_paused:
        host.machines.drain(machine)


_DEEDS: dict[str, Callable[..., None]] = {
    "kill": _kill,
    "stop": _stop,
    "hang-up": _hang_up,
    "dies": lambda world, machine: world.machine_goes(machine, silently=False),
    "power": lambda world, machine: world.machine_goes(machine, silently=True),
    "comes": lambda world, machine: world.machine_comes(machine),
    "drain": _drain,
    "cut": _cut,
    "full": _full,
    "crash": _crash,
    "pause": _pause,
    "interrupt": _interrupt,
}
