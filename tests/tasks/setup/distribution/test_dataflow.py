"""Communication is computed from a distribution, for every policy that is known from the literature."""

from dataclasses import replace

import pytest

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.run import ClusterSettings
from penstock.tasks.setup.distribution.dataflow import (
    EDGES,
    agents_of,
    check_agents,
    check_supported,
    crossings,
    cut_edges,
    owner_of,
    tiles_of,
    works_in_step,
)
from penstock.tasks.setup.distribution.policies import DistributionPolicy, Role
from penstock.tasks.setup.distribution.settings import FRAGMENTS, Fragment
from penstock.tasks.setup.planning.preflight import check_clusters


def role(name: str, replicas: int, *fragments: Fragment) -> Role:
    return Role(name, frozenset(fragments), replicas, ((name, 1.0),))


COARSE = DistributionPolicy(
    "single_learner_coarse",
    (role("actors", 4, "env", "act", "collect"), role("learner", 1, "buffer", "learn", "sync")),
)
FINE = DistributionPolicy(
    "single_learner_fine", (role("envs", 4, "env"), role("learner", 1, "act", "collect", "buffer", "learn", "sync"))
)
MULTIPLE = DistributionPolicy("multiple_learners", (role("worker", 4, *FRAGMENTS),), reduce="allreduce")
GPU_ONLY = DistributionPolicy("gpu_only", (role("gpu", 2, *FRAGMENTS),), reduce="allreduce", pools="torch")
ENVIRONMENTS = DistributionPolicy(
    "environments",
    (role("envs", 6, "env"), role("worker", 2, "act", "collect", "buffer", "learn", "sync")),
    reduce="allreduce",
)
CENTRAL = DistributionPolicy(
    "central",
    (role("worker", 4, "env", "act", "collect", "buffer", "learn"), role("server", 1, "sync")),
    reduce="parameter_server",
)
AGENTS = DistributionPolicy(
    "agents",
    (role("actors", 2, "env", "act", "collect"), role("learner", 3, "buffer", "learn", "sync")),
    reduce="agents",
)

STEPS = [("env", "act", "step", "gather"), ("act", "env", "step", "scatter"), ("env", "collect", "step", "gather")]
EXPECTED = {
    COARSE: [("collect", "buffer", "round", "gather"), ("sync", "act", "round", "broadcast")],
    FINE: STEPS,
    MULTIPLE: [],
    GPU_ONLY: [],
    ENVIRONMENTS: STEPS,
    CENTRAL: [
        ("learn", "sync", "minibatch", "reduce"),
        ("sync", "learn", "minibatch", "broadcast"),
        ("sync", "act", "round", "broadcast"),
    ],
    AGENTS: [("collect", "buffer", "round", "broadcast"), ("sync", "act", "round", "broadcast")],
}


@pytest.mark.parametrize("policy", EXPECTED, ids=lambda policy: policy.name)
def test_cut_edges_follow_from_the_distribution(policy: DistributionPolicy):
    """Each edge that crosses a process border has its frequency and its communication."""
    found = [
        (item.edge.source, item.edge.target, item.edge.granularity, item.communication) for item in cut_edges(policy)
    ]
    assert found == EXPECTED[policy]
    for item in cut_edges(policy):
        assert item.source is policy.role_of(item.edge.source)
        assert item.target is policy.role_of(item.edge.target)


def test_one_role_per_fragment_cuts_every_edge():
    """No edge of the loop is omitted."""
    policy = DistributionPolicy("apart", tuple(role(fragment, 1, fragment) for fragment in FRAGMENTS))
    assert [item.edge for item in cut_edges(policy)] == list(EDGES)
    assert {fragment for edge in EDGES for fragment in (edge.source, edge.target)} == set(FRAGMENTS)


@pytest.mark.parametrize("policy", EXPECTED, ids=lambda policy: policy.name)
def test_supported_policies_pass(policy: DistributionPolicy):
    """Rounds go through storage, steps over links, gradients to a server; the cut edges are returned."""
    assert check_supported(policy) == cut_edges(policy)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            DistributionPolicy(
                "split", (role("act", 2, "env", "act"), role("learn", 1, "collect", "buffer", "learn", "sync"))
            ),
            "policy 'split' cuts 'env -> collect, a step, gather: act -> learn'",
        ),
        (
            DistributionPolicy("summed", CENTRAL.roles, reduce="allreduce"),
            "policy 'summed' cuts 'learn -> sync, a minibatch, reduce: worker -> server'",
        ),
        (
            DistributionPolicy("owned", CENTRAL.roles, reduce="agents"),
            "policy 'owned' cuts 'learn -> sync, a minibatch, reduce: worker -> server'",
        ),
        (
            DistributionPolicy("served", MULTIPLE.roles, reduce="parameter_server"),
            "policy 'served' reduces gradients by 'parameter_server' and has sync in 4 x 'worker'",
        ),
        (
            DistributionPolicy("two", (CENTRAL.roles[0], role("server", 2, "sync")), reduce="parameter_server"),
            "policy 'two' reduces gradients by 'parameter_server' and has sync in 2 x 'server'",
        ),
        (
            DistributionPolicy(
                "torn",
                (role("one", 1, "env", "act", "collect", "sync"), role("two", 1, "buffer", "learn")),
                reduce="parameter_server",
            ),
            "policy 'torn' puts act, collect, env, sync together in 'one', which no component implements",
        ),
        (
            DistributionPolicy("remote", FINE.roles, pools="torch"),
            "policy 'remote' has pools in torch in 'envs', which does not act",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, DistributionPolicy) else "",
)
def test_unsupported_policies_are_refused_by_name(policy: DistributionPolicy, expected: str):
    """The message names the edge, the reduction or the role that is the reason."""
    with pytest.raises(ConfigError) as caught:
        check_supported(policy)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    "policy",
    [
        DistributionPolicy("crowd", (role("worker", 4, *FRAGMENTS),)),
        DistributionPolicy(
            "two_learners", (role("act", 2, "env", "act", "collect"), role("learn", 2, "buffer", "learn", "sync"))
        ),
    ],
    ids=lambda policy: policy.name,
)
def test_several_learners_without_reduction_are_refused(policy: DistributionPolicy):
    """Learners that do not reduce their gradients would train separate networks."""
    with pytest.raises(ConfigError, match=f"policy '{policy.name}' .*learn"):
        check_supported(policy)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        *((COARSE, False), (FINE, True), (MULTIPLE, True), (GPU_ONLY, True), (ENVIRONMENTS, True), (CENTRAL, True)),
        (AGENTS, True),
    ],
    ids=lambda value: value.name if isinstance(value, DistributionPolicy) else "",
)
def test_policies_whose_members_wait_within_a_round_work_in_step(policy: DistributionPolicy, expected: bool):
    """One member may restart alone only if no edge but those of rounds crosses processes."""
    assert works_in_step(policy) is expected


@pytest.mark.parametrize("tiles", [1, 2, 5, 8, 13])
def test_tiles_are_split_evenly_and_contiguously(tiles: int):
    """Every tile has one owner, owners hold contiguous tiles, none is idle, and counts differ by at most one."""
    for replicas in range(1, tiles + 1):
        owned = [tiles_of(replica, replicas, tiles) for replica in range(replicas)]
        assert [tile for part in owned for tile in part] == list(range(tiles))
        assert all(tile in owned[owner_of(tile, replicas, tiles)] for tile in range(tiles))
        sizes = {len(part) for part in owned}
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


# Agents


def owners(*agents: tuple[int, ...], learners: int | None = None) -> DistributionPolicy:
    """A policy whose learners own the agents that are listed, or an even split of all."""
    actors, learner = AGENTS.roles
    return replace(AGENTS, roles=(actors, replace(learner, replicas=learners or len(agents), agents=agents or None)))


def test_learners_that_own_agents_send_what_they_own_and_reduce_nothing():
    """They exchange parameters once a round, whatever the minibatches; a single one exchanges nothing."""
    found = [str(item) for item in crossings(AGENTS)]
    assert found == [*map(str, cut_edges(AGENTS)), "learn -> learn, a round, broadcast: learner -> learner"]
    assert crossings(owners(learners=1)) == cut_edges(owners(learners=1))


def test_workers_that_act_and_own_agents_read_each_others_shards():
    """The shards of a worker's tiles have the rows of all agents, so that every other worker reads them."""
    policy = DistributionPolicy("together", (role("worker", 2, *FRAGMENTS),), reduce="agents")
    assert check_supported(policy) == ()
    assert [(item.edge.name, item.communication) for item in crossings(policy)] == [
        ("learn -> learn", "broadcast"),
        ("collect -> buffer", "broadcast"),
        ("sync -> act", "broadcast"),
    ]


def test_agents_are_split_as_listed_or_as_tiles_are():
    """Without a list, contiguous agents, as evenly as possible."""
    listed = owners((2, 0), (1,))
    assert [agents_of(listed.role_of("learn"), replica, 3) for replica in range(2)] == [(2, 0), (1,)]
    even = owners(learners=2).role_of("learn")
    assert [agents_of(even, replica, 5) for replica in range(2)] == [(0, 1), (2, 3, 4)]
    check_agents(listed, "spread", 3)
    check_agents(owners(learners=3), "spread", 3, [(0,), (1,), (2,)])


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (owners((0, 1)), "agents = [[0, 1]]: spread has the agents [0, 1, 2], .*missing: [2]; listed twice: none"),
        (owners((0, 1), (1, 2)), "missing: none; listed twice: [1]; unknown: none. Correct the list"),
        (owners((0, 1), (2, 3)), "missing: none; listed twice: none; unknown: [3]. Correct the list"),
        (owners((0, 1), (2,), learners=1), "learner.agents has 2 entries, and the role 1 replicas, .*learn_tasks = 2"),
        (
            owners((0, 1, 2), ()),
            "agents = [[0, 1, 2], []]: expected an entry for each learner",
        ),
        (
            owners(learners=4),
            "4 learners, and spread only 3 agents, so 1 would have none; set distribution.learn_tasks",
        ),
        (owners((0,), (1, 2)), "[[0], [1, 2]], .*several learners: [[0, 1]]; learners without a loss: [[0]]. Set"),
    ],
    ids=["missing", "twice", "unknown", "entries", "idle", "too many learners", "a loss of two"],
)
def test_agents_without_exactly_one_learner_are_refused(policy: DistributionPolicy, said: str):
    """The message has what is listed, what the environment has, and what to change."""
    with pytest.raises(ConfigError) as caught:
        check_agents(policy, "spread", 3, [(0, 1), (2,)])
    for part in said.split(" .*"):
        assert part in str(caught.value)


# Several clusters


def test_only_edges_through_storage_may_cross_clusters():
    """Actors may be on any clusters, and learners on others; commas and lists have the same meaning."""
    check_clusters(COARSE, ClusterSettings(scheduler="c", schedulers={"actors": "a, b"}))
    check_clusters(COARSE, ClusterSettings(schedulers={"actors": ["a", "b"], "learner": None}))
    trainers = DistributionPolicy(
        "own", (COARSE.roles[0], role("trainers", 2, "buffer", "learn", "sync")), reduce="allreduce"
    )
    check_clusters(trainers, ClusterSettings(schedulers={"actors": ["a", "b"], "trainers": ["c"]}))
    for policy in (FINE, MULTIPLE, GPU_ONLY, ENVIRONMENTS, CENTRAL):
        check_clusters(policy, ClusterSettings(scheduler="a", schedulers={policy.roles[0].name: "a"}))


@pytest.mark.parametrize(
    ("policy", "schedulers", "said"),
    [
        (FINE, {"envs": "b"}, "puts envs and learner on a, b, and policy 'single_learner_fine' has 'env -> act"),
        (MULTIPLE, {"worker": "a,b"}, "puts worker on a, b, and policy 'multiple_learners' has 'learn -> learn"),
        (AGENTS, {"learner": "b,c"}, "puts learner on b, c, and policy 'agents' has 'learn -> learn"),
        (CENTRAL, {"server": ""}, "puts worker and server on a, this machine, and policy 'central' has 'learn -> sync"),
        (COARSE, {"actor": "b"}, "names actor: policy 'single_learner_coarse' has the roles actors, learner"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_roles_linked_within_a_round_need_one_cluster(policy: DistributionPolicy, schedulers: dict, said: str):
    """Links and collectives need one cluster; the message names roles, clusters, edge and remedy."""
    with pytest.raises(ConfigError) as caught:
        check_clusters(policy, ClusterSettings(scheduler="a", schedulers=schedulers))
    assert said in str(caught.value)
