"""Who copies the logs of which machine."""

import pytest

from helpers.harness.coordinator_world import World, sent
from holdfast.cluster import parse_worker
from holdfast.config import config_from
from holdfast.control.state.boundary_logs import copiers
from holdfast.errors import ConfigError
from holdfast.protocol import messages

ON = {"log": "boundary", "log_copies": 1}
HOSTS = {"0.0": "10.0.0.1", "0.1": "10.0.0.2", "1.0": "10.0.0.2", "1.1": "10.0.0.3"}


def told_after(keepers: dict[str, list[str]]) -> dict[str, str]:
    by_host = {host: [parse_worker(name) for name in here] for host, here in keepers.items()}
    return {str(worker): host for worker, host in copiers(by_host).items()}


def test_each_machine_is_copied_by_the_next_one_that_has_somebody():
    keepers = {"c": ["0.2"], "a": ["0.0", "0.1"], "b": [], "d": ["1.0"]}
    assert told_after(keepers) == {"0.2": "a", "1.0": "c", "0.0": "d"}
    assert told_after({"a": ["0.0"], "b": ["0.1"]}) == {"0.0": "b", "0.1": "a"}


@pytest.mark.parametrize("keepers", [{}, {"a": ["0.0"]}, {"a": ["0.0"], "b": []}])
def test_one_machine_alone_is_copied_by_nobody(keepers):
    assert told_after(keepers) == {}


def begun(**recovery: object) -> World:
    world = World(2, 2, recovery=recovery)
    for worker, host in HOSTS.items():
        world.come(worker, host=host)
    world.pump()
    return world


def copied(effects) -> dict[str, dict[str, int]]:
    told = sent(effects, messages.CopyLogs)
    return {name: {h: len(at) for h, at in m.keepers.items()} for name, m in told.items()}


def test_all_are_told_when_training_begins_and_when_somebody_is_lost():
    world = begun(**ON)
    first = len(world.effects)
    assert copied(world.effects) == {
        "0.0": {"10.0.0.3": 1},
        "0.1": {"10.0.0.1": 1},
        "1.0": {},
        "1.1": {"10.0.0.2": 2},
    }
    world.die("0.1")
    world.pump()
    assert copied(world.effects[first:]) == {
        "0.0": {"10.0.0.3": 1},
        "1.0": {"10.0.0.1": 1},
        "1.1": {"10.0.0.2": 1},
    }


def test_nobody_is_told_unless_it_is_wanted():
    assert copied(begun(log="boundary").effects) == {}


@pytest.mark.parametrize("values", [{"log_copies": 1}, {"log": "boundary", "log_copies": 2}])
def test_a_setting_that_cannot_be_is_refused(values):
    with pytest.raises(ConfigError, match=r"recovery\.log_copies"):
        config_from({"recovery": values})
