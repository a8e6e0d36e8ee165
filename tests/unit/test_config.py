"""Settings are typed and checked; an error names the key, the value and what was expected."""

import math
import re

import pytest

from holdfast.config import RunConfig, config_from, known_keys, parse_assignment, set_value
from holdfast.errors import ConfigError


def test_the_defaults_are_valid_and_survive_a_round_trip() -> None:
    config = config_from({"parallel": {"pipelines": 2, "stages": 3, "cut": [2, 4]}})
    assert config.parallel.cut == (2, 4)
    assert config_from(config.to_dict()) == config
    assert config_from({}) == RunConfig()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"parallel": {"pipelines": 0}}, ["parallel.pipelines=0", "at least 1"]),
        ({"parallel": {"stages": 0}}, ["parallel.stages=0", "at least 1"]),
        ({"parallel": {"pipelines": 2, "microbatches": 3}}, ["microbatches=3", "divisible"]),
        ({"parallel": {"stages": 3, "cut": [2]}}, ["parallel.cut=[2]", "2 layer numbers"]),
        ({"parallel": {"stages": "two"}}, ["parallel.stages='two'", "whole number"]),
        ({"parallel": {"stages": True}}, ["parallel.stages=True", "whole number"]),
        ({"train": {"steps": 0}}, ["train.steps=0", "at least 1"]),
        ({"optimizer": {"mode": "lazy"}}, ["optimizer.mode=lazy", "staggered or global"]),
        ({"gradients": {"mood": "fast"}}, ["gradients.mood", "gradients.mode"]),
        ({"gradient": {"mode": "fast"}}, ["gradient", "unknown section"]),
        ({"train": 3}, ["train=3", "section"]),
        ({"device": {"emulate": "F=20"}}, ["device.emulate=F=20", "F=20ms"]),
        ({"device": {"emulate": "F=1ms,B=1ms"}}, ["lacks W"]),
        ({"device": {"emulate": "F=1ms,B=1ms,X=1ms"}}, ["X=1ms"]),
        ({"device": {"emulate": "F=0ms,B=1ms,W=1ms"}}, ["device.emulate=F=0ms", "some time"]),
        ({"control": {"port": 70000}}, ["control.port=70000", "65535"]),
        ({"control": {"journal": "etcd://a:1"}}, ["control.journal=etcd://a:1", "PREFIX"]),
        ({"control": {"lease_s": 0.5}}, ["control.lease_s=0.5", "from 1 to 600"]),
        ({"control": {"host": "0.0.0.0"}}, ["control.host", "network.listen now"]),
        ({"network": {"listen": ""}}, ["network.listen=", "expected a host name"]),
        ({"network": {"advertise": "a b"}}, ["network.advertise=a b", "expected a host name"]),
        ({"network": {"advertise": "0.0.0.0"}}, ["network.advertise=0.0.0.0", "others can call"]),
        ({"workers": {"heartbeat_timeout_s": math.inf}}, ["heartbeat_timeout_s=inf", "0.1 to"]),
        ({"workers": {"heartbeat_timeout_s": 0.05}}, ["workers.heartbeat_timeout_s=0.05", "0.1"]),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_was_expected(values, words) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(values)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer.mode=global", ("optimizer.mode", "global")),
        ("parallel.stages=4", ("parallel.stages", 4)),
        ("parallel.cut=[2, 4]", ("parallel.cut", [2, 4])),
        ("parallel.cut=2,4", ("parallel.cut", [2, 4])),
        ("job.args=--lr 3e-4 --name 'a b'", ("job.args", ["--lr", "3e-4", "--name", "a b"])),
        ("workers.allow_mixed=true", ("workers.allow_mixed", True)),
        ("workers.heartbeat_timeout_s=2.5", ("workers.heartbeat_timeout_s", 2.5)),
        ("device.emulate=F=1ms,B=1ms,W=1ms", ("device.emulate", "F=1ms,B=1ms,W=1ms")),
    ],
)
def test_an_assignment_is_read_by_the_type_of_its_key(text, expected) -> None:
    assert parse_assignment(text) == expected
    values: dict = {}
    set_value(values, *parse_assignment(text))
    if expected[0] != "parallel.cut":
        config_from(values)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("optimizer.mode", "section.field=value"),
        ("optimizer.moody=1", "unknown setting"),
        ("stages=2", "unknown setting"),
        ("parallel.stages=two", "whole number"),
        ("workers.allow_mixed=maybe", "true or false"),
        ("parallel.cut=a,b", "list of whole numbers"),
        ("job.args=--name 'a", "list of texts"),
    ],
)
def test_a_bad_assignment_is_refused(text, word) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_assignment(text)


def test_the_old_name_of_a_setting_is_refused_with_the_new_one() -> None:
    said = "workers.silence_limit_s: unknown setting; its name is workers.heartbeat_timeout_s now"
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        parse_assignment("workers.silence_limit_s=3")
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        config_from({"workers": {"silence_limit_s": 3}})


def test_every_setting_can_be_listed() -> None:
    assert "optimizer.mode" in known_keys()
    assert len(known_keys()) == len(set(known_keys()))


def test_a_fused_backward_takes_as_long_as_its_parts_unless_said_otherwise() -> None:
    durations = config_from({"device": {"emulate": "F=1ms,B=2ms,W=3ms"}}).device.durations_s()
    assert durations == pytest.approx({"F": 0.001, "B": 0.002, "W": 0.003, "BW": 0.005, "R": 0.0})
