"""A policy places every fragment of the loop exactly once."""

import pytest

from storage.errors import ConfigError
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


def test_the_shipped_policy_is_that_of_the_table():
    """Actors step, infer and collect, as many as asked for; one learner does the rest."""
    policy = make_policy("single_learner_coarse", 3)
    assert [(item.name, item.fragments, item.replicas, item.resources) for item in policy.roles] == [
        ("act", {"env", "act", "collect"}, 3, (("actor", 1.0),)),
        ("learn", {"buffer", "learn", "sync"}, 1, (("learner", 1.0),)),
    ]
    assert policy.reduce == "local"


def test_an_unknown_name_is_refused_with_those_that_exist():
    """By the setting's full name."""
    with pytest.raises(ConfigError, match=r"placement\.policy = 'seed_rl': no such policy; .*single_learner_coarse"):
        make_policy("seed_rl", 1)
