"""A policy places every fragment of the loop exactly once."""

import pytest

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.distribution.dataflow import check_supported
from penstock.tasks.setup.distribution.policies import DistributionPolicy, Role, make_policy, unused_counts
from penstock.tasks.setup.distribution.settings import FRAGMENTS, DistributionSettings, Fragment


def role(name: str, *fragments: Fragment, replicas: int = 1) -> Role:
    return Role(name, frozenset(fragments), replicas, ((name, 1.0),))


@pytest.mark.parametrize("missing", FRAGMENTS)
def test_a_missing_fragment_is_named(missing: Fragment):
    """The message names the missing fragment and lists all fragments."""
    rest = [fragment for fragment in FRAGMENTS if fragment != missing]
    with pytest.raises(ConfigError, match=rf"policy 'mine' .*env, act, .*missing: {missing}; placed twice: none"):
        DistributionPolicy("mine", (role("worker", *rest),))


@pytest.mark.parametrize("twice", FRAGMENTS)
def test_a_fragment_in_two_roles_is_named(twice: Fragment):
    """An edge to it would be ambiguous; the message names it."""
    with pytest.raises(ConfigError, match=rf"policy 'mine' .*missing: none; placed twice: {twice}"):
        DistributionPolicy("mine", (role("worker", *FRAGMENTS), role("other", twice)))


def test_an_empty_policy_misses_everything():
    """The message names all six fragments."""
    with pytest.raises(ConfigError, match="missing: env, act, collect, buffer, learn, sync; placed twice: none"):
        DistributionPolicy("mine", ())


def test_a_fragments_role_is_found():
    """`role_of` finds the role of every fragment."""
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
        (
            "agents",
            [("act", {"env", "act", "collect"}, 2, ACTOR), ("learn", {"buffer", "learn", "sync"}, 4, LEARNER)],
            "agents",
        ),
    ],
)
def test_shipped_policies_are_those_of_the_table(name: str, roles: list[tuple], reduce: str):
    """Roles, fragments, replicas and resources are those that the documentation lists."""
    policy = make_policy(DistributionSettings(policy=name, act_tasks=2, env_tasks=3, learn_tasks=4))
    assert [(item.name, item.fragments, item.replicas, item.resources) for item in policy.roles] == roles
    assert policy.reduce == reduce
    assert policy.pools == ("torch" if name == "gpu_only" else "native")


def test_an_unknown_name_is_refused_with_those_that_exist():
    """The message has the setting's full name."""
    with pytest.raises(ConfigError, match=r"distribution\.policy = 'seed_rl': no such policy; .*single_learner_coarse"):
        make_policy(DistributionSettings(policy="seed_rl"))


ACT = {"fragments": ["env", "act", "collect"], "replicas": "act_tasks"}
LEARN = {"fragments": ["buffer", "learn", "sync"]}


def described(**roles: dict) -> DistributionSettings:
    return DistributionSettings.model_validate({"policy": "mine", "act_tasks": 3, "learn_tasks": 2, "roles": roles})


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
        ({"actors": ACT, "all": {**LEARN, "replicas": "learn_tasks", "agents": [[0, 1], [2]]}}, "agents"),
    ],
    ids=["coarse", "multiple", "central", "replay", "agents"],
)
def test_a_custom_policy_is_built_from_its_settings(roles: dict, reduce: str):
    """Roles and counts are those of the settings; reduction and default resources follow from the fragments."""
    policy = make_policy(described(**roles))
    kinds = {"actors": ACTOR, "trainer": LEARNER, "all": LEARNER, "keeper": SERVER}
    counts = {"actors": 3, "all": 2}
    assert [(role.name, role.replicas, role.resources) for role in policy.roles] == [
        (name, counts.get(name, 1), kinds[name]) for name in roles
    ]
    assert (policy.name, policy.reduce, policy.pools) == ("mine", reduce, "native")


def test_agents_are_listed_one_or_several_for_each_learner():
    """`[0, 1]` is a learner for each, `[[0, 1], [2]]` one for two; without them the role is stored as before."""
    for agents, expected in (([0, 1], ((0,), (1,))), ([[0, 1], 2], ((0, 1), (2,)))):
        policy = make_policy(described(actors=ACT, trainer={**LEARN, "replicas": "learn_tasks", "agents": agents}))
        assert policy.role_of("learn").agents == expected
        assert [policy.share_of_rows(replica, 2) for replica in range(2)] == [(0, 1), (0, 1)]
    learner = described(actors=ACT, trainer=LEARN).roles["trainer"]
    assert learner.model_dump(mode="json").keys() == {"fragments", "replicas", "resources", "pools"}
    assert make_policy(DistributionSettings(policy="central", learn_tasks=2)).share_of_rows(1, 2) == (1, 2)


def test_a_custom_policy_sets_its_resources_and_pools():
    """Resources are given by name, and torch pools for the role that holds env."""
    policy = make_policy(described(actors={**ACT, "resources": {"GPU": 0.5}, "pools": "torch"}, trainer=LEARN))
    assert policy.roles[0].resources == (("GPU", 0.5),)
    assert policy.pools == "torch"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"roles": {"trainer": LEARN}}, "policy = 'single_learner_coarse' is a built-in one; choose another"),
        ({"policy": "mine", "roles": {"actors": ACT}}, "policy 'mine' .*missing: buffer, learn, sync; placed twice"),
        (
            {"policy": "mine", "roles": {"actors": ACT, "all": {"fragments": FRAGMENTS}}},
            "missing: none; placed twice: act, collect, env",
        ),
        (
            {"policy": "mine", "roles": {"actors": ACT, "trainer": {**LEARN, "pools": "torch"}}},
            r"distribution\.roles: trainer has pools = 'torch'; only the role that holds env",
        ),
        (
            {"policy": "mine", "roles": {"actors": {"fragments": ["env", "act", "collect", "env"]}, "trainer": LEARN}},
            r"roles\.actors\.fragments = .*: env is there twice; name each once",
        ),
        (
            {"policy": "mine", "roles": {"actors": {**ACT, "agents": [0]}, "trainer": LEARN}},
            r"distribution\.roles: actors has agents; only the role that holds learn trains",
        ),
    ],
)
def test_an_invalid_custom_policy_is_refused_with_the_reason(settings: dict, message: str):
    """The refusal comes before anything starts, as for built-in policies."""
    with pytest.raises(ConfigError, match=message):
        make_policy(DistributionSettings.model_validate(settings))


@pytest.mark.parametrize(
    ("policy", "unused"),
    [
        ("single_learner_coarse", ["env_tasks", "learn_tasks"]),
        ("single_learner_fine", ["act_tasks", "learn_tasks"]),
        ("gpu_only", ["act_tasks", "env_tasks"]),
        ("environments", ["act_tasks"]),
        ("central", ["act_tasks", "env_tasks"]),
        ("agents", ["env_tasks"]),
    ],
)
def test_unused_counts_lists_the_counts_without_effect(policy: str, unused: list[str]):
    """A warning can name them; counts of 1 are left out, since they are the default."""
    assert unused_counts(DistributionSettings(policy=policy, act_tasks=2, env_tasks=2, learn_tasks=2)) == dict.fromkeys(
        unused, 1
    )
    assert unused_counts(DistributionSettings(policy=policy)) == {}


def test_the_number_of_learners_that_own_agents_has_an_effect():
    """Also where a list of agents fits this number alone."""
    owners = {**LEARN, "replicas": "learn_tasks", "agents": [[0, 1], [2]]}
    assert unused_counts(described(actors=ACT, trainer=owners)) == {}


def test_roles_are_part_of_the_identity_and_their_mistakes_are_named():
    """A run can't resume under other roles; an unknown setting of a role is refused by its full name."""
    distribution = {"policy": "mine", "roles": {"actors": ACT, "trainer": LEARN}}
    identity = build_config({"distribution": distribution}).identity()["placement"]
    assert identity["roles"]["actors"]["fragments"] == ["env", "act", "collect"]
    assert "roles" not in build_config({}).identity()["placement"]
    with pytest.raises(ConfigError, match=r"distribution\.roles\.actors\.replica: no such setting; .*replicas"):
        build_config({"distribution": {**distribution, "roles": {"actors": {**ACT, "replica": 2}}}})


@pytest.mark.parametrize("name", ["single_learner_coarse", "multiple_learners", "central", "learner_over_storage"])
def test_the_learning_part_of_a_policy_needs_no_environment(name: str):
    """Its roles lose the acting fragments, and keep replicas, resources and reduction."""
    policy = make_policy(DistributionSettings(policy=name, learn_tasks=3))
    learning = policy.over_storage()
    assert not learning.has_actors
    assert (learning.learners, learning.reduce) == (policy.learners, policy.reduce)
    for fragment in FRAGMENTS[3:]:
        assert learning.role_of(fragment).resources == policy.role_of(fragment).resources
    assert {fragment for role in learning.roles for fragment in role.fragments} == set(FRAGMENTS[3:])
    check_supported(learning)
