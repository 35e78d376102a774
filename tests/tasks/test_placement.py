"""Communication is computed from a placement: for every policy that is known from the literature, and for tiles."""

import pytest

from storage.errors import ConfigError
from tasks.config import ClusterSettings
from tasks.placement import EDGES, check_clusters, check_supported, cut_edges, owner_of, tiles_of, works_in_step
from tasks.policies import FRAGMENTS, DistributionPolicy, Fragment, Role


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
}


@pytest.mark.parametrize("policy", EXPECTED, ids=lambda policy: policy.name)
def test_cut_edges_follow_from_the_placement(policy: DistributionPolicy):
    """Which edges cross a process border, how often they fire, and what communication each needs."""
    found = [
        (item.edge.source, item.edge.target, item.edge.granularity, item.communication) for item in cut_edges(policy)
    ]
    assert found == EXPECTED[policy]
    for item in cut_edges(policy):
        assert item.source is policy.role_of(item.edge.source)
        assert item.target is policy.role_of(item.edge.target)


def test_with_a_role_a_fragment_every_edge_is_cut():
    """Nothing is forgotten: the edges are those of the loop."""
    policy = DistributionPolicy("apart", tuple(role(fragment, 1, fragment) for fragment in FRAGMENTS))
    assert [item.edge for item in cut_edges(policy)] == list(EDGES)
    assert {fragment for edge in EDGES for fragment in (edge.source, edge.target)} == set(FRAGMENTS)


@pytest.mark.parametrize("policy", EXPECTED, ids=lambda policy: policy.name)
def test_what_the_runtime_can_do_is_let_through(policy: DistributionPolicy):
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
            "policy 'torn' puts act, collect, env, sync together in 'one', which nothing plays",
        ),
        (
            DistributionPolicy("remote", FINE.roles, pools="torch"),
            "policy 'remote' has pools in torch in 'envs', which does not act",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, DistributionPolicy) else "",
)
def test_what_the_runtime_lacks_is_refused_by_name(policy: DistributionPolicy, expected: str):
    """Before anything starts, with the edge, the reduction or the role that is the reason."""
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
def test_learners_that_never_meet_are_refused(policy: DistributionPolicy):
    """Several learners that reduce nothing would train several networks and call them one."""
    with pytest.raises(ConfigError, match=f"policy '{policy.name}' .*learn"):
        check_supported(policy)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(COARSE, False), (FINE, True), (MULTIPLE, True), (GPU_ONLY, True), (ENVIRONMENTS, True), (CENTRAL, True)],
    ids=lambda value: value.name if isinstance(value, DistributionPolicy) else "",
)
def test_who_waits_within_a_round_works_in_step(policy: DistributionPolicy, expected: bool):
    """Only where rounds alone cross processes may one member begin again while the others go on."""
    assert works_in_step(policy) is expected


@pytest.mark.parametrize("tiles", [1, 2, 5, 8, 13])
def test_tiles_are_shared_out_whole_and_evenly(tiles: int):
    """Every tile has one owner, owners hold neighbours, none is idle, and no two differ by more than one tile."""
    for replicas in range(1, tiles + 1):
        owned = [tiles_of(replica, replicas, tiles) for replica in range(replicas)]
        assert [tile for part in owned for tile in part] == list(range(tiles))
        assert all(tile in owned[owner_of(tile, replicas, tiles)] for tile in range(tiles))
        sizes = {len(part) for part in owned}
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


# Several clusters


def test_only_what_goes_through_storage_may_lie_on_several_clusters():
    """Actors anywhere, and learners apart from them; commas and lists name the same."""
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
        (CENTRAL, {"server": ""}, "puts worker and server on a, this machine, and policy 'central' has 'learn -> sync"),
        (COARSE, {"actor": "b"}, "names actor: policy 'single_learner_coarse' has the roles actors, learner"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_happens_within_a_round_has_one_cluster(policy: DistributionPolicy, schedulers: dict, said: str):
    """Links and collectives need one, and a role must be there: refused with roles, places, the edge and what to do."""
    with pytest.raises(ConfigError) as caught:
        check_clusters(policy, ClusterSettings(scheduler="a", schedulers=schedulers))
    assert said in str(caught.value)
