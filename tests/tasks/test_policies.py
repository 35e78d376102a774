"""A policy places every fragment of the loop exactly once."""

import pytest

from storage.errors import ConfigError
from tasks.config import PlacementSettings
from tasks.policies import FRAGMENTS, DistributionPolicy, Fragment, Role, make_policy


def role(name: str, *fragments: Fragment, replicas: int = 1) -> Role:
    return Role(name, frozenset(fragments), replicas, ((name, 1.0),))


@pytest.mark.parametrize("missing", FRAGMENTS)
def test_a_missing_fragment_is_named(missing: Fragment):
    """Whichever it is; the message lists all that have to be placed."""
    rest = [fragment for fragment in FRAGMENTS if fragment != missing]
    with pytest.raises(ConfigError, match=rf"policy 'mine' .*env, act, .*missing: {missing}; placed twice: none"):
        DistributionPolicy("mine", (role("worker", *rest),))


@pytest.mark.parametrize("twice", FRAGMENTS)
def test_a_fragment_in_two_roles_is_named(twice: Fragment):
    """Nobody could say which of the two an edge leads to."""
    with pytest.raises(ConfigError, match=rf"policy 'mine' .*missing: none; placed twice: {twice}"):
        DistributionPolicy("mine", (role("worker", *FRAGMENTS), role("other", twice)))


def test_an_empty_policy_misses_everything():
    """All six are named."""
    with pytest.raises(ConfigError, match="missing: env, act, collect, buffer, learn, sync; placed twice: none"):
        DistributionPolicy("mine", ())


def test_a_fragments_role_is_found():
    """For every fragment, in a policy of one role a fragment."""
    policy = DistributionPolicy("mine", tuple(role(f"{fragment}-role", fragment) for fragment in FRAGMENTS))
    assert [policy.role_of(fragment).name for fragment in FRAGMENTS] == [f"{fragment}-role" for fragment in FRAGMENTS]


ALL = set(FRAGMENTS)
ACTOR, LEARNER, SERVER = (("actor", 1.0),), (("learner", 1.0),), (("server", 1.0),)


@pytest.mark.parametrize(
    ("name", "roles", "reduce"),
    [
        (
            "single_learner_coarse",
            [("act", {"env", "act", "collect"}, 2, ACTOR), ("learn", {"buffer", "learn", "sync"}, 1, LEARNER)],
            "local",
        ),
        ("single_learner_fine", [("env", {"env"}, 3, ACTOR), ("learn", ALL - {"env"}, 1, LEARNER)], "local"),
        ("multiple_learners", [("worker", ALL, 4, LEARNER)], "allreduce"),
        ("environments", [("env", {"env"}, 3, ACTOR), ("worker", ALL - {"env"}, 4, LEARNER)], "allreduce"),
        ("central", [("worker", ALL - {"sync"}, 4, LEARNER), ("server", {"sync"}, 1, SERVER)], "parameter_server"),
    ],
)
def test_shipped_policies_are_those_of_the_table(name: str, roles: list[tuple], reduce: str):
    """Roles, fragments, replicas from the settings, and resources."""
    policy = make_policy(PlacementSettings(policy=name, act_tasks=2, env_tasks=3, learn_tasks=4))
    assert [(item.name, item.fragments, item.replicas, item.resources) for item in policy.roles] == roles
    assert policy.reduce == reduce


def test_an_unknown_name_is_refused_with_those_that_exist():
    """By the setting's full name."""
    with pytest.raises(ConfigError, match=r"placement\.policy = 'seed_rl': no such policy; .*single_learner_coarse"):
        make_policy(PlacementSettings(policy="seed_rl"))
