"""A policy places every fragment of the loop exactly once."""

import pytest

from storage.errors import ConfigError
from tasks.config import PlacementSettings, build_config
from tasks.placement import check_supported
from tasks.policies import FRAGMENTS, DistributionPolicy, Fragment, Role, make_policy, unused_counts


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
        ("gpu_only", [("worker", ALL, 4, LEARNER)], "allreduce"),
        ("environments", [("env", {"env"}, 3, ACTOR), ("worker", ALL - {"env"}, 4, LEARNER)], "allreduce"),
        ("central", [("worker", ALL - {"sync"}, 4, LEARNER), ("server", {"sync"}, 1, SERVER)], "parameter_server"),
    ],
)
def test_shipped_policies_are_those_of_the_table(name: str, roles: list[tuple], reduce: str):
    """Roles, fragments, replicas from the settings, and resources."""
    policy = make_policy(PlacementSettings(policy=name, act_tasks=2, env_tasks=3, learn_tasks=4))
    assert [(item.name, item.fragments, item.replicas, item.resources) for item in policy.roles] == roles
    assert policy.reduce == reduce
    assert policy.pools == ("torch" if name == "gpu_only" else "native")


def test_an_unknown_name_is_refused_with_those_that_exist():
    """By the setting's full name."""
    with pytest.raises(ConfigError, match=r"placement\.policy = 'seed_rl': no such policy; .*single_learner_coarse"):
        make_policy(PlacementSettings(policy="seed_rl"))


ACT = {"fragments": ["env", "act", "collect"], "replicas": "act_tasks"}
LEARN = {"fragments": ["buffer", "learn", "sync"]}


def described(**roles: dict) -> PlacementSettings:
    return PlacementSettings.model_validate({"policy": "mine", "act_tasks": 3, "learn_tasks": 2, "roles": roles})


@pytest.mark.parametrize(
    ("roles", "reduce"),
    [
        ({"actors": ACT, "trainer": LEARN}, "local"),
        ({"all": {"fragments": FRAGMENTS, "replicas": "learn_tasks"}}, "allreduce"),
        (
            {"all": {"fragments": FRAGMENTS[:5], "replicas": "learn_tasks"}, "keeper": {"fragments": ["sync"]}},
            "parameter_server",
        ),
        ({"trainer": LEARN}, "local"),
    ],
    ids=["coarse", "multiple", "central", "replay"],
)
def test_a_policy_of_ones_own_is_a_few_lines_of_settings(roles: dict, reduce: str):
    """Roles as described, counted by the settings; how gradients are reduced follows, and so do usual resources."""
    policy = make_policy(described(**roles))
    kinds = {"actors": ACTOR, "trainer": LEARNER, "all": LEARNER, "keeper": SERVER}
    counts = {"actors": 3, "all": 2}
    assert [(role.name, role.replicas, role.resources) for role in policy.roles] == [
        (name, counts.get(name, 1), kinds[name]) for name in roles
    ]
    assert (policy.name, policy.reduce, policy.pools) == ("mine", reduce, "native")


def test_a_policy_of_ones_own_says_what_it_takes_and_what_steps_its_environments():
    """Resources by name, and pools in torch for whoever holds env."""
    policy = make_policy(described(actors={**ACT, "resources": {"GPU": 0.5}, "pools": "torch"}, trainer=LEARN))
    assert policy.roles[0].resources == (("GPU", 0.5),)
    assert policy.pools == "torch"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"roles": {"trainer": LEARN}}, "policy = 'single_learner_coarse' is one that there is; give yours another"),
        ({"policy": "mine", "roles": {"actors": ACT}}, "policy 'mine' .*missing: buffer, learn, sync; placed twice"),
        (
            {"policy": "mine", "roles": {"actors": ACT, "all": {"fragments": FRAGMENTS}}},
            "missing: none; placed twice: act, collect, env",
        ),
        (
            {"policy": "mine", "roles": {"actors": ACT, "trainer": {**LEARN, "pools": "torch"}}},
            r"placement\.roles: trainer has pools = 'torch'; only the role that holds env",
        ),
    ],
)
def test_what_is_no_policy_is_refused_with_the_reason(settings: dict, message: str):
    """Before anything starts, as policies that ship would be."""
    with pytest.raises(ConfigError, match=message):
        make_policy(PlacementSettings.model_validate(settings))


@pytest.mark.parametrize(
    ("policy", "unused"),
    [
        ("single_learner_coarse", ["env_tasks", "learn_tasks"]),
        ("single_learner_fine", ["act_tasks", "learn_tasks"]),
        ("gpu_only", ["act_tasks", "env_tasks"]),
        ("environments", ["act_tasks"]),
        ("central", ["act_tasks", "env_tasks"]),
    ],
)
def test_counts_that_change_nothing_are_known(policy: str, unused: list[str]):
    """So that somebody who sets them can be told; those that are 1 are nobody's mistake."""
    assert unused_counts(PlacementSettings(policy=policy, act_tasks=2, env_tasks=2, learn_tasks=2)) == unused
    assert unused_counts(PlacementSettings(policy=policy)) == []


def test_roles_count_for_a_runs_bytes_and_a_mistake_in_them_is_named():
    """A run can't go on under other roles; a setting that a role has not is refused by its full name."""
    placement = {"policy": "mine", "roles": {"actors": ACT, "trainer": LEARN}}
    identity = build_config({"placement": placement}).identity()["placement"]
    assert identity["roles"]["actors"]["fragments"] == ["env", "act", "collect"]
    assert "roles" not in build_config({}).identity()["placement"]
    with pytest.raises(ConfigError, match=r"placement\.roles\.actors\.replica: no such setting; .*replicas"):
        build_config({"placement": {**placement, "roles": {"actors": {**ACT, "replica": 2}}}})


@pytest.mark.parametrize("name", ["single_learner_coarse", "multiple_learners", "central", "learner_over_storage"])
def test_what_learns_of_a_policy_needs_no_environment(name: str):
    """Its roles without what acts, as many and on the same resources; gradients are reduced as they were."""
    policy = make_policy(PlacementSettings(policy=name, learn_tasks=3))
    learning = policy.over_storage()
    assert not learning.acts
    assert (learning.learners, learning.reduce) == (policy.learners, policy.reduce)
    for fragment in FRAGMENTS[3:]:
        assert learning.role_of(fragment).resources == policy.role_of(fragment).resources
    assert {fragment for role in learning.roles for fragment in role.fragments} == set(FRAGMENTS[3:])
    check_supported(learning)
