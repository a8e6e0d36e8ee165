"""All policies by name, and how one is made with constants of the user's choice."""

from collections.abc import Mapping, Sequence

from holdfast.baselines.policies.choosing import ChameleonPolicy
from holdfast.baselines.policies.constants import changed
from holdfast.baselines.policies.paces import Paces
from holdfast.baselines.policies.policy import Policy
from holdfast.baselines.policies.recutting import ElaswavePolicy, OobleckPolicy, VarunaPolicy
from holdfast.baselines.policies.redundant import BambooPolicy
from holdfast.baselines.policies.rerouting import HoldfastPolicy, RecyclePolicy
from holdfast.baselines.policies.restarting import (
    DroppingPolicy,
    HorovodPolicy,
    RestartPolicy,
    SparesPolicy,
)
from holdfast.errors import Argument, ConfigError

ALL_POLICIES: tuple[type[Policy], ...] = (
    HoldfastPolicy,
    RecyclePolicy,
    OobleckPolicy,
    BambooPolicy,
    VarunaPolicy,
    DroppingPolicy,
    RestartPolicy,
    HorovodPolicy,
    SparesPolicy,
    ChameleonPolicy,
    ElaswavePolicy,
)
BY_NAME: Mapping[str, type[Policy]] = {policy.name: policy for policy in ALL_POLICIES}


def policy_named(name: str) -> type[Policy]:
    if name not in BY_NAME:
        raise ConfigError(f"policy {name}: expected one of {', '.join(BY_NAME)}")
    return BY_NAME[name]


def make_policy(name: str, paces: Paces, constants: Mapping[str, float] | None = None) -> Policy:
    kind = policy_named(name)
    table = changed(name, kind.constants_type(), constants or {})
    return kind(paces.job, paces, table)


def parse_constants(words: Sequence[str]) -> dict[str, dict[str, float]]:
    """``oobleck.reconfigure_s=83``: policy, name, value."""
    found: dict[str, dict[str, float]] = {}
    for word in words:
        name, _, value = word.partition("=")
        policy, _, field = name.strip().partition(".")
        try:
            number = float(value)
        except ValueError:
            field = ""
        if not field:
            raise ConfigError(
                Argument("constant", word),
                ": expected policy.name=number, e.g. oobleck.regroup_s=83",
            )
        changed(policy, policy_named(policy).constants_type(), {field: number})
        found.setdefault(policy, {})[field] = number
    return found
