"""Agents as actors in a placement group that is spread over the nodes of a Ray cluster."""

import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast.errors import ConfigError
from holdfast.launch.clusters import MachineEnded, Say
from holdfast.launch.orders import AgentOrder
from holdfast.launch.ray.holder import AgentHolder

_LISTEN_S = 1.0
_KEPT_CALLS = 4  # at one time, so that an end is heard while lines are waited for


class _Actor:
    """One machine. Nothing here waits: what was asked is looked at when it has come."""

    def __init__(self, ray: Any, handle: Any, order: bytes, suffix: str, say: Say) -> None:
        self._ray, self.handle, self._say = ray, handle, say
        self.machine = f"actor{suffix}"
        self._asked = handle.begin.remote(order, suffix, holdfast.__version__)
        self._has_begun = self.is_over = False

    def poll(self) -> MachineEnded | None:
        if self.is_over or not self._ray.wait([self._asked], timeout=0)[0]:
            return None
        try:
            found = self._ray.get(self._asked)
        except self._ray.exceptions.RayError as why:
            first = (str(why).strip().splitlines() or [type(why).__name__])[0]
            return self._ended(f"Ray has lost its actor: {first}")
        if not self._has_begun:
            self.machine, reason = found
            self._has_begun = not reason
            if reason:
                return self._ended(reason)
        else:
            lines, code = found
            for line in lines:
                self._say(f"{self.machine} | {line}")
            if code is not None:
                how = f" with code {code}" if code else ""
                return self._ended(f"its agent ended{how}")
        self._asked = self.handle.listen.remote(_LISTEN_S)
        return None

    def _ended(self, reason: str) -> MachineEnded:
        self.is_over = True
        self._ray.kill(self.handle)
        return MachineEnded(self.machine, reason, was_up=self._has_begun)


class RayCluster:
    """``ray``: the module."""

    def __init__(self, ray: Any, slots: int, say: Say, command: str) -> None:
        self._ray, self._slots, self._say, self._command = ray, slots, say, command
        self._grace_s = AgentOrder("").grace_s
        self._group: Any = None
        self._actors: list[_Actor] = []
        self._is_ours = False  # the connection to Ray

    def start(self, ticket: Path, machines: int) -> int:
        """One agent a node if there are enough nodes; else several share one."""
        ray, text = self._ray, ticket.read_text()
        if not ray.is_initialized():
            self._connect()
        num_nodes = sum(bool(node["Alive"]) for node in ray.nodes())
        is_enough = num_nodes >= machines
        bundle = {"CPU": float(self._slots)}
        self._group = ray.util.placement_group(
            [bundle] * machines, strategy="STRICT_SPREAD" if is_enough else "SPREAD"
        )
        # It outlives nobody: Ray ends actors with the program that has made them.
        order = AgentOrder(text, command=self._command, slots=self._slots).encode()
        kind = ray.remote(AgentHolder)
        for index in range(machines):
            place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                self._group, index
            )
            options = {"max_concurrency": _KEPT_CALLS, "num_cpus": bundle["CPU"]}
            handle = kind.options(scheduling_strategy=place, **options).remote()
            suffix = "" if is_enough else f"-{index}"
            self._actors.append(_Actor(ray, handle, order, suffix, self._say))
        return machines

    def _connect(self) -> None:
        try:
            self._ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError) as why:
            raise ConfigError(
                "cluster ray: there is no Ray cluster here; start one with ray start, or set "
                "RAY_ADDRESS"
            ) from why
        self._is_ours = True

    def poll(self) -> list[MachineEnded]:
        return [ended for actor in self._actors if (ended := actor.poll()) is not None]

    def stop(self) -> None:
        there = [actor for actor in self._actors if not actor.is_over]
        for actor in there:
            actor.handle.end.remote()
        deadline_s = time.monotonic() + self._grace_s + 1.0
        while time.monotonic() < deadline_s and not all(actor.is_over for actor in there):
            self.poll()
            time.sleep(0.05)
        for actor in there:
            if not actor.is_over:
                self._ray.kill(actor.handle)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
        self._actors, self._group = [], None
        if self._is_ours:
            self._ray.shutdown()


def open_ray(slots: int | None, say: Say, command: str) -> RayCluster:
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError as why:
        raise ConfigError(
            "cluster ray: Ray is not installed here: pip install 'holdfast[ray]'"
        ) from why
    return RayCluster(ray, slots or 1, say, command)  # a CPU of Ray each
