"""Costs follow from the distribution: the edges that cross processes and their bytes, for every policy."""

import pytest

from penstock.tasks.setup.config.loading import build_config, merge
from penstock.tasks.setup.distribution.dataflow import crosses, crossings, cut_edges
from penstock.tasks.setup.distribution.policies import POLICIES, make_policy
from penstock.tasks.setup.planning.calibration_process import sizes_of
from penstock.tasks.setup.planning.dry_run import trial_run
from penstock.tasks.setup.planning.traffic import Sizes, edge_costs

CONFIG = build_config(
    {
        "environment": {"num_envs": 8, "envs_per_tile": 2},
        "algorithm": {"hidden": [8], "epochs": 3, "minibatches": 2},
        "schedule": {"round_steps": 16},
    }
)
# Parameters of policy and value: 4 inputs, 8 hidden, 2 and 1 outputs, with biases.
POLICY_BYTES, VALUE_BYTES = 4 * (4 * 8 + 8 + 8 * 2 + 2), 4 * (4 * 8 + 8 + 8 + 1)
MINIBATCHES = 6


@pytest.fixture(scope="module")
def sizes() -> Sizes:
    with trial_run(CONFIG) as (assignment, context):
        return sizes_of(assignment, context)


def policy_of(name: str, learn_tasks: int = 2):
    return make_policy(CONFIG.distribution.model_copy(update={"policy": name, "learn_tasks": learn_tasks}))


def test_sizes_are_those_of_the_configuration(sizes):
    """Sizes agree with those counted by hand: vectors, steps, updates, and at least the columns of a shard."""
    assert sizes.action_bytes == 2 * 8
    assert sizes.observation_bytes == 2 * 4 * 4
    assert sizes.updates == 2 * MINIBATCHES
    assert sizes.gradient_bytes == MINIBATCHES * (POLICY_BYTES + VALUE_BYTES)
    assert (sizes.server_reply_vectors, sizes.server_reply_bytes) == (sizes.updates, sizes.gradient_bytes)
    assert (sizes.sums, sizes.sums_bytes, sizes.priority_messages, sizes.round_state_vectors) == (1, 3 * 8, 0, 0)
    assert sizes.snapshot_bytes > POLICY_BYTES
    assert sizes.shard_bytes > 32 * (16 + 4 + 1 + 1 + 8 + 4 + 3 * 4)


def test_the_difference_of_a_trial_round_is_measured(sizes: Sizes):
    """The learned round changes weights: its difference is no small constant, and smaller than the snapshot."""
    assert sizes.difference_bytes == 0
    reduced = {"snapshot_dtype": "bfloat16", "snapshot_differences": True}
    config = build_config(merge(CONFIG.model_dump(), {"algorithm": {"hidden": [64, 64]}, "distribution": reduced}))
    with trial_run(config) as (assignment, context):
        found = sizes_of(assignment, context)
    assert 0.1 * found.snapshot_bytes < found.difference_bytes == found.version_read_bytes < found.snapshot_bytes


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "learner_over_storage"])
def test_every_edge_that_crosses_has_a_cost(name: str, sizes: Sizes):
    """Cut edges, and edges between replicas of a role, have a cost and a transport."""
    policy = policy_of(name)
    costs = {cost.crossing.edge.name: cost for cost in edge_costs(policy, CONFIG, sizes)}
    assert (
        set(costs) == {item.edge.name for item in crossings(policy)} >= {item.edge.name for item in cut_edges(policy)}
    )
    assert all(crosses(policy, edge) for edge in costs)
    steps = CONFIG.schedule.round_steps * CONFIG.environment.tiles
    for edge, cost in costs.items():
        assert cost.round_bytes > 0
        assert cost.way == {"env": "link", "act": "link", "collect": "storage"}.get(
            edge.split(" ", maxsplit=1)[0], "storage" if edge == "sync -> act" else "collective"
        )
        if cost.way == "link":
            assert cost.round_messages == steps
    if "learn -> sync" in costs:
        to_server = policy.reduce == "parameter_server"  # which is told the rows of the round, in eight bytes
        assert costs["learn -> sync"].round_messages == 2 * (sizes.updates + to_server)
        assert costs["learn -> sync"].round_bytes == 2 * (sizes.gradient_bytes + 8 * to_server)


def test_owners_of_agents_send_what_they_train_to_each_other(sizes: Sizes):
    """Parameters, two moments of each and a step's counter, of both groups: once a round to each of the others."""
    assert sizes.owned_bytes == 3 * (POLICY_BYTES + VALUE_BYTES) + 2 * 4
    for learners in (1, 2, 3):
        costs = {cost.crossing.edge.name: cost for cost in edge_costs(policy_of("agents", learners), CONFIG, sizes)}
        assert costs["collect -> buffer"].round_messages == CONFIG.environment.tiles
        if learners == 1:
            assert costs.keys() == {"collect -> buffer", "sync -> act"}
            continue
        between = costs["learn -> learn"]
        assert (between.round_messages, between.way) == (learners * (learners - 1), "collective")
        assert between.round_bytes == (learners - 1) * sizes.owned_bytes


def test_learners_that_take_steps_independently_send_as_much_and_a_count_of_rows(sizes: Sizes):
    """PPO's losses are independent: both gradients go together, and both groups return after each minibatch."""
    stale = CONFIG.model_copy(
        update={"distribution": CONFIG.distribution.model_copy(update={"policy": "central", "max_staleness": 1})}
    )
    policy = policy_of("central")
    costs, plain = (
        {cost.crossing.edge.name: cost for cost in edge_costs(policy, config, sizes)} for config in (stale, CONFIG)
    )
    sent, replied = costs["learn -> sync"], costs["sync -> learn"]
    assert sizes.arrivals == MINIBATCHES
    assert sent.round_messages == plain["learn -> sync"].round_messages + 2 * MINIBATCHES
    assert sent.round_bytes == plain["learn -> sync"].round_bytes + 2 * MINIBATCHES * 8
    assert (replied.round_messages, replied.round_bytes) == (
        plain["sync -> learn"].round_messages,
        plain["sync -> learn"].round_bytes,
    )


@pytest.mark.parametrize("name", ["multiple_learners", "gpu_only"])
def test_one_worker_that_holds_everything_sends_nothing(name: str, sizes: Sizes):
    """Only with two workers do gradients, sums and snapshots cross processes."""
    assert edge_costs(policy_of(name, learn_tasks=1), CONFIG, sizes) == []
    crossing = {cost.crossing.edge.name for cost in edge_costs(policy_of(name), CONFIG, sizes)}
    assert crossing == {"learn -> learn", "learn -> sync", "sync -> act"}
