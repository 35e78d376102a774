"""`policy = "auto"` chooses the shortest predicted round among the supported policies."""

from dataclasses import replace

import pytest

from penstock.storage.errors import ConfigError, GangRefusedError
from penstock.tasks.driver.admission import shortages
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.distribution.policies import make_policy
from penstock.tasks.setup.distribution.settings import DistributionSettings
from penstock.tasks.setup.planning.auto_policy import candidates, choose
from penstock.tasks.setup.planning.calibration_process import calibrate
from penstock.tasks.setup.planning.resolve import resolve
from penstock.tasks.setup.planning.round_time import PartSeconds, round_seconds
from penstock.tasks.setup.planning.traffic import Sizes

SIZES = Sizes(
    owned_bytes=0,
    action_bytes=64, observation_bytes=128, frame_bytes=96, end_bytes=2000, start_bytes=1000, greeting_bytes=20,
    welcome_bytes=1, shard_bytes=50_000, state_bytes=1000, snapshot_bytes=5000, difference_bytes=0,
    checkpoint_bytes=15_000, updates=8,
    gradient_bytes=40_000, server_reply_vectors=8, server_reply_bytes=40_000,
    arrivals=4, stale_reply_vectors=8, stale_reply_bytes=40_000,
    sums=1, sums_bytes=24, priority_messages=0, priority_bytes=0, round_state_vectors=0, round_state_bytes=0,
)  # fmt: skip
EVEN = PartSeconds(
    step=1e-4, step_cpu=1e-4, infer=1e-4, write=1e-3, take=1e-4, fetch=1e-6, torch_round=1.0, update=0.01,
    update_row=1e-6, update_cpu=0.01, update_row_cpu=1e-6, optimizer=4e-3, message=2e-5, collective=5e-4,
    collective_cpu=5e-4, cores=8, busy_core_speed=1.0,
)  # fmt: skip


def config_of(environment: str = "CartPole-v1", lag: int = 0, **distribution):
    return build_config(
        {
            "environment": {"id": environment, "num_envs": 32, "envs_per_tile": 8},
            "schedule": {"round_steps": 64, "lag": lag},
            "distribution": {"policy": "auto", **distribution},
        }
    )


def seconds(config, parts: PartSeconds, policy: str, **counts: int) -> float:
    distribution = config.distribution.model_copy(update={"policy": policy, **counts})
    return round_seconds(make_policy(distribution), config, parts, SIZES)


def names(config) -> list[tuple[str, int, int, int]]:
    found = (candidate.distribution for candidate in candidates(config))
    return sorted((item.policy, item.act_tasks, item.env_tasks, item.learn_tasks) for item in found)


def test_candidates_are_supported_policies_with_at_most_the_configured_tasks():
    """Each policy appears once per number of tasks; replay policies, and one without its environment, do not."""
    assert names(config_of("gymnasium/Acrobot-v1", act_tasks=3, learn_tasks=2)) == [
        ("central", 1, 1, 1),
        ("central", 1, 1, 2),
        ("environments", 1, 1, 1),
        ("environments", 1, 1, 2),
        ("multiple_learners", 1, 1, 1),
        ("multiple_learners", 1, 1, 2),
        ("single_learner_coarse", 1, 1, 1),
        ("single_learner_coarse", 3, 1, 1),
        ("single_learner_fine", 1, 1, 1),
    ]
    assert ("gpu_only", 1, 1, 1) in names(config_of())


def test_fewest_tasks_are_at_most_those_of_each_candidate():
    """So that a resume accepts what is stored of the choice; where they have no effect they are left out."""
    config = config_of(act_tasks=4, min_act_tasks=3, env_tasks=2, min_env_tasks=2)
    found = {}
    for candidate in candidates(config):
        distribution = candidate.distribution
        assert DistributionSettings.model_validate(distribution.model_dump()) == distribution
        counts = (
            distribution.act_tasks,
            distribution.min_act_tasks,
            distribution.env_tasks,
            distribution.min_env_tasks,
        )
        found.setdefault(distribution.policy, set()).add(counts)
    assert found["single_learner_coarse"] == {(4, 3, 1, None), (1, 1, 1, None)}
    assert found["single_learner_fine"] == {(1, None, 2, 2), (1, None, 1, 1)}


def test_learners_may_own_agents_if_these_have_parameters_of_their_own():
    """With as many learners as there are agents at most; two then divide the minibatches' work, and add up nothing."""
    algorithm = {"name": "mappo", "shared_parameters": False}
    environment = {"id": "simple_spread_v3", "num_envs": 8, "envs_per_tile": 2}
    values = {"environment": environment, "algorithm": algorithm}
    config = build_config({**values, "distribution": {"policy": "auto", "learn_tasks": 2}})
    assert {("agents", 1, 1, 1), ("agents", 1, 1, 2)} <= {*names(config)}
    many = config.model_copy(update={"distribution": config.distribution.model_copy(update={"learn_tasks": 4})})
    assert [found for found in names(many) if found[0] == "agents"] == [("agents", 1, 1, 1)]
    shared = build_config(
        {"environment": environment, "algorithm": {"name": "mappo"}, "distribution": {"policy": "auto"}}
    )
    assert [found for found in names(shared) if found[0] == "agents"] == []
    owned = seconds(config, EVEN, "agents", learn_tasks=2)
    alone = seconds(config, EVEN, "agents", learn_tasks=1)
    learning = EVEN.update + config.environment.num_envs * config.schedule.round_steps * EVEN.update_row
    assert alone - owned == pytest.approx(learning / 2 - 2 * EVEN.collective)


def test_the_shortest_predicted_round_is_taken():
    """Candidates are sorted by seconds, and the choice has its numbers of tasks."""
    choice = choose(config_of(act_tasks=4), SIZES, EVEN, lambda _: [])
    found = [candidate.seconds for candidate in choice.candidates]
    assert found == sorted(found)
    best = choice.candidates[0].distribution
    assert (best.policy, best.act_tasks) == ("single_learner_coarse", 4)
    assert choice.to_json()["candidates"][0]["round_seconds"] == found[0]
    assert choice.why.startswith("a round is predicted to take single_learner_coarse (4 act, 1 learn) ")


@pytest.mark.parametrize(
    ("parts", "counts", "expected"),
    [
        (replace(EVEN, step=1e-2), {"act_tasks": 4}, "single_learner_coarse"),
        (replace(EVEN, update_row=1e-3), {"learn_tasks": 4}, "multiple_learners"),
        (replace(EVEN, torch_round=1e-4), {}, "gpu_only"),
        (replace(EVEN, step=1e-2), {"env_tasks": 4}, "single_learner_fine"),
    ],
    ids=["slow environments", "slow learning", "fast device", "slow environments apart"],
)
def test_the_slowest_part_decides_the_choice(parts: PartSeconds, counts: dict[str, int], expected: str):
    """The policy that spreads the slow part over processes is chosen."""
    assert choose(config_of(**counts), SIZES, parts, lambda _: []).candidates[0].distribution.policy == expected


def test_a_device_that_steps_no_environment_gets_none():
    """`gpu_only` is no candidate where the learner's device could not step the environment, as without a compiler."""
    for parts, is_one in ((EVEN, True), (replace(EVEN, torch_round=None), False)):
        found = choose(config_of(), SIZES, parts, lambda _: []).candidates
        assert any(candidate.distribution.policy == "gpu_only" for candidate in found) == is_one


def test_times_add_up_under_each_policy():
    """Acting and learning alternate at lag 0 and overlap at lag 1; shared cores and collectives add time."""
    config, late = config_of(), config_of(lag=1)
    acting = 4 * (64 * (EVEN.step + EVEN.infer) + EVEN.write)
    learning = EVEN.update + 32 * 64 * EVEN.update_row
    assert seconds(config, EVEN, "multiple_learners") == pytest.approx(acting + learning)
    assert seconds(late, EVEN, "multiple_learners") == seconds(config, EVEN, "multiple_learners")
    assert seconds(config, EVEN, "single_learner_coarse") > seconds(late, EVEN, "single_learner_coarse") > acting
    one_core = replace(EVEN, cores=1)
    spread = {"act_tasks": 4}
    assert seconds(config, one_core, "single_learner_coarse", **spread) == pytest.approx(
        seconds(config, one_core, "single_learner_coarse")
    )
    waits = seconds(config, EVEN, "central") - seconds(config, EVEN, "multiple_learners")
    assert waits >= (SIZES.updates + SIZES.server_reply_vectors) * EVEN.collective


def test_only_what_fits_the_cluster_is_compared():
    """A policy without enough worker slots is left out; if none fits, the error names the shortage of each."""
    config = config_of(act_tasks=4)
    places = [{"all": {"actor": 1.0}, "threads": 1}, {"all": {"learner": 1.0}, "threads": 1}]
    found = choose(config, SIZES, EVEN, lambda policy: shortages(policy, places, "all"))
    assert {candidate.distribution.policy for candidate in found.candidates} == {
        "single_learner_coarse", "single_learner_fine", "multiple_learners", "gpu_only", "environments",
    }  # fmt: skip
    assert all(candidate.distribution.act_tasks == 1 for candidate in found.candidates)
    with pytest.raises(GangRefusedError, match=r"no policy fits .*central needs 1 slots with learner=1 for 'worker'"):
        choose(config, SIZES, EVEN, lambda policy: shortages(policy, [], "all"))


def test_a_policy_that_would_have_to_shrink_is_chosen_only_where_no_other_fits():
    """Its prediction is for all of its tasks, which the cluster has not."""
    config = config_of(act_tasks=4, learn_tasks=4, min_act_tasks=1)
    places = [{"all": {"actor": 1.0}, "threads": 1}, *[{"all": {"learner": 1.0}, "threads": 1}] * 4]
    found = choose(config, SIZES, EVEN, lambda policy: shortages(policy, places, "all")).candidates
    needed = [{role.name: role.replicas for role in make_policy(one.distribution).roles} for one in found]
    assert needed
    assert all(of.get("act", 0) <= 1 for of in needed), needed


def test_calibration_measures_every_part():
    """Every part has a positive time, for an environment with a torch version."""
    found = calibrate(config_of(), timed=True)
    parts = PartSeconds(**(found["parts"] or {}))
    assert min(parts.step, parts.write, parts.fetch, parts.message, parts.collective, parts.torch_round or 0.0) > 0
    assert parts.update + parts.update_row > 0
    assert 0 < parts.optimizer <= min(parts.update, parts.update_cpu)
    assert 0 < parts.busy_core_speed <= 1
    assert parts.collective_cpu > 0
    assert parts.infer >= 0
    assert parts.cores >= 1
    assert calibrate(config_of("Acrobot-v1"), timed=False)["parts"] is None


def test_auto_is_refused_with_custom_roles(tmp_path):
    """A custom policy needs another name."""
    roles = {"all": {"fragments": ["env", "act", "collect", "buffer", "learn", "sync"]}}
    with pytest.raises(ConfigError, match=r"distribution\.policy = 'auto' is a built-in one"):
        resolve(config_of(roles=roles).model_copy(update={"store": str(tmp_path)}), "refuse")
