"""Environments in tensors equal the native pool's bit for bit, by the step or by the round, in states and in errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import native
from penstock.storage.errors import ConfigError
from penstock.storage.tensors import load_tensors, save_tensors
from penstock.tasks.environments.torch.pool import TorchPool, make_torch_pool
from penstock.tasks.environments.torch.registry import check_torch_environment, torch_environment_ids

from ...support.environments.rounds import Arrays, actions_for, assert_same, buffers_for, left, play, seeds_of

IDS = (
    "Acrobot-v1", "CartPole-v1", "ConnectFour-v0", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1",
    "PositionOnlyCartPole-v0", "simple_spread_continuous_v3", "simple_spread_v3",
)  # fmt: skip
FEW = ("CartPole-v1", "ConnectFour-v0", "simple_spread_continuous_v3")
"""One of each kind: a plain one, one with masks and random steps, one with agents."""
EACH = np.arange(50)
CONFIGURED: dict[str, dict[str, Any]] = {
    "Acrobot-v1": {"torque_noise_max": EACH / 50, "nips": (EACH % 2 == 0).tolist(), "dt": 0.15},
    "CartPole-v1": {"gravity": np.linspace(5, 15, 50), "length": 0.7, "sutton_barto_reward": True},
    "MountainCar-v0": {"gravity": np.linspace(0.002, 0.003, 50), "goal_velocity": 0.01},
    "MountainCarContinuous-v0": {"power": np.linspace(0.001, 0.003, 50)},
    "Pendulum-v1": {"g": np.linspace(5, 12, 50), "m": 1.3, "l": 0.9},
    "simple_spread_v3": {"local_ratio": np.linspace(0, 1, 50)},
    "simple_spread_continuous_v3": {"local_ratio": 0.2},
}


def pools(environment_id: str, num_envs: int, *arguments: Any, **config: Any) -> tuple[TorchPool, native.Pool]:
    """Make a native and a torch pool, not started."""
    limit, *rest = arguments or (None,)
    torch_pool = make_torch_pool(environment_id, num_envs, "cpu", limit, *rest, **config)
    twin = native.make(environment_id, num_envs, 1, limit, *rest, **config)
    assert isinstance(twin, native.Pool)
    return torch_pool, twin


def test_ids_are_those_that_can_be_made():
    """Listed ids can be made, with the native pool's spaces and limits; others are refused."""
    assert set(IDS) <= set(torch_environment_ids())
    for environment_id in IDS:
        pool, twin = pools(environment_id, 2)
        assert pool.environment == twin.environment
        assert pool.single_action_space == twin.single_action_space
        assert pool.observation_space == twin.observation_space
        check_torch_environment(environment_id, [])
    with pytest.raises(ConfigError, match=r"'gymnasium/Acrobot-v1' cannot be stepped in tensors.*CartPole-v1, "):
        check_torch_environment("gymnasium/Acrobot-v1", [])


@pytest.mark.parametrize("environment_id", [*IDS, *(f"{name} configured" for name in CONFIGURED)])
def test_thousands_of_steps_are_the_pools(environment_id: str):
    """Rows, ends, bootstraps, episodes and states have the native pool's bytes, over resets and truncations.

    Fifty seeds play 1,200 steps each in rounds of several lengths; half of CartPole's balance for long.
    """
    environment_id, _, configured = environment_id.partition(" ")
    torch_pool, twin = pools(environment_id, 50, **(CONFIGURED[environment_id] if configured else {}))
    for pool in (torch_pool, twin):
        pool.reset_ids(seeds_of(50))
    assert_same(torch_pool.save(), twin.save())
    ends = np.zeros(2)
    for round_, steps in enumerate((520, 1, 79, 600)):
        found, expected = (buffers_for(twin, steps) for _ in range(2))
        torch_pool.begin_round(**found)
        twin.begin_round(**expected)
        drawn = actions_for(environment_id, (steps, 50), round_)
        for t, action in enumerate(drawn):
            if environment_id == "CartPole-v1":
                balanced = (expected["observation"][t, :, 2:] @ np.array([1.0, 0.5]) > 0).astype(np.int64)
                action = np.where(EACH % 2, balanced, action)  # noqa: PLW2901
            torch_pool.step_round(t, action)
            twin.step_round(t, action)
        assert_same(left(found, torch_pool.end_round()), left(expected, twin.end_round()))
        assert_same(torch_pool.save(), twin.save())
        ends += expected["terminated"].sum(), expected["truncated"].sum()
    assert ends.sum() > 20
    # Connect four has no limit, and nothing here balances a pole whose velocities it does not see.
    assert (ends[1] > 0) == (environment_id not in {"ConnectFour-v0", "PositionOnlyCartPole-v0"})


@pytest.mark.parametrize("environment_id", IDS)
@pytest.mark.parametrize("limit", [1, 3, -1])
def test_frequent_resets_get_the_native_starts(environment_id: str, limit: int):
    """For any frequency of resets and length of rounds, starts, flags and generators are the native ones."""
    torch_pool, twin = pools(environment_id, 3, limit)
    for pool in (torch_pool, twin):
        pool.reset_ids(seeds_of(3))
    ended = 0
    for round_, steps in enumerate((4, 9, 1, 30, 6)):
        actions = actions_for(environment_id, (steps, 3), round_)
        expected = play(twin, actions)
        assert_same(play(torch_pool, actions), expected)
        assert_same(torch_pool.save(), twin.save())
        ended += len(expected["episodes/row"])
    assert ended >= (150 // limit - 10 if limit > 0 else 0)


@pytest.mark.slow
def test_a_loaded_header_is_stepped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Agents, float64 observations, arrays of every type and normal draws in steps keep the pool's bytes.

    If an environment throws, the error names it, and the pool needs a reset.
    """
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path))
    native.load(Path(__file__).parents[2] / "native" / "batch" / "drift.hpp", flags=["-O0"])
    torch_pool, twin = pools("Drift-v0", 6, wind=np.linspace(0.1, 2, 6), stride=[1, 2, 3, 1, 2, 3], mirrored=True)
    for pool in (torch_pool, twin):
        pool.reset_ids(seeds_of(6))
    for round_ in range(3):
        actions = actions_for("Drift-v0", (200, 6), round_)
        assert_same(play(torch_pool, actions), play(twin, actions))
        assert_same(torch_pool.save(), twin.save())
    stormy, twin = pools("Drift-v0", 3, wind=[0.1, 1e9, 0.1])
    for pool in (stormy, twin):
        pool.reset_ids(seeds_of(3))
        pool.begin_round(**buffers_for(pool, 4))
        with pytest.raises(RuntimeError, match="environment 1 of Drift-v0 failed: the gust was "):
            pool.step_round(0, actions_for("Drift-v0", (3,)))
        with pytest.raises(RuntimeError, match="not every environment is ready: reset"):
            pool.save()
    stormy.reset(seed=4)
    assert stormy.save()["episode_id"].tolist() == [0, 0, 0]


def test_both_flags_are_set_if_both_happen():
    """A pole that falls in the last allowed step is terminated and truncated; an earlier one only terminated."""
    torch_pool, twin = pools("CartPole-v1", 40, 9)
    for pool in (torch_pool, twin):
        pool.reset_ids(seeds_of(40))
    actions = np.ones((30, 40), dtype=np.int64)
    found = play(torch_pool, actions)
    assert_same(found, play(twin, actions))
    terminated, truncated = (found[f"episodes/{name}"].astype(np.bool_) for name in ("terminated", "truncated"))
    assert (terminated & truncated).any()
    assert (terminated & ~truncated).any()
    assert (truncated & ~terminated).any()


@pytest.mark.parametrize("environment_id", FEW)
def test_a_restored_state_continues_with_the_same_bytes(environment_id: str):
    """Restored in another pool, from stored bytes, during episodes: rows, episodes and the next state are equal."""
    pool = make_torch_pool(environment_id, 5, max_episode_steps=17)
    pool.reset_ids(seeds_of(5))
    play(pool, actions_for(environment_id, (11, 5)))
    stored = save_tensors(pool.save(), {})
    actions = actions_for(environment_id, (40, 5), 4)
    expected = play(pool, actions)
    other = make_torch_pool(environment_id, 5, max_episode_steps=17)
    other.restore(load_tensors(memoryview(stored), "state")[0])
    assert other.save()["elapsed_steps"].max() > 0
    assert_same(play(other, actions), expected)
    assert_same(other.save(), pool.save())
    assert len(expected["episodes/row"]) > 4


@pytest.mark.parametrize("environment_id", IDS)
def test_states_are_the_native_ones(environment_id: str):
    """Each kind of pool restores the other's states; an altered one is refused, and changes nothing."""
    torch_pool, twin = pools(environment_id, 4, 9)
    twin.reset_ids(seeds_of(4))
    play(twin, actions_for(environment_id, (13, 4)))
    state = twin.save()
    torch_pool.restore(state)
    assert_same(torch_pool.save(), state)
    actions = actions_for(environment_id, (12, 4), 8)
    assert_same(play(torch_pool, actions), play(twin, actions))
    kept = torch_pool.save()
    with pytest.raises(ValueError, match="increment is even"):
        torch_pool.restore(state | {"generator": np.zeros((4, 5), dtype=np.uint64)})
    with pytest.raises(ValueError, match="lacks 'elapsed_steps'"):
        torch_pool.restore({name: value for name, value in state.items() if name != "elapsed_steps"})
    assert_same(torch_pool.save(), kept)
    twin.restore(kept)
    assert_same(twin.save(), kept)


@pytest.mark.parametrize("environment_id", FEW)
def test_results_do_not_depend_on_the_split(environment_id: str):
    """An environment's numbers are the same bytes in a pool of 29, of 13 or alone."""
    actions, seeds = actions_for(environment_id, (60, 29)), seeds_of(29)
    columns = ("observation", "reward", "terminated", "truncated", "episode_id")

    def part(first: int, last: int) -> Arrays:
        pool = make_torch_pool(environment_id, last - first, max_episode_steps=25)
        pool.reset_ids(seeds[first:last])
        played = play(pool, np.ascontiguousarray(actions[:, first:last]))
        return {name: played[name] for name in columns} | {
            f"state/{name}": value[np.newaxis] for name, value in pool.save().items()
        }

    whole = part(0, 29)
    parts = [part(0, 1), part(1, 14), part(14, 16), part(16, 29)]
    assert_same({name: np.concatenate([one[name] for one in parts], axis=1) for name in whole}, whole)


@pytest.mark.parametrize("environment_id", [*FEW, "Acrobot-v1"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_the_gymnasium_api_equals_the_native_pools(environment_id: str, mode: str):
    """Steps, resets with masks and without seeds, flags, final observations, statistics; in each autoreset mode."""
    torch_pool, twin = pools(environment_id, 4, 7, mode, record_episode_statistics=True)
    both = (torch_pool, twin)
    assert torch_pool.metadata["autoreset_mode"] == twin.metadata["autoreset_mode"]
    seen = [pool.reset(seed=[5, 6, 2**63, 8])[0] for pool in both]
    ended, infos_seen = np.zeros(4, dtype=np.bool_), 0
    for t, action in enumerate(actions_for(environment_id, (60, 4))):
        if (mode == "Disabled" and ended.any()) or t == 33:
            mask = ended if ended.any() else np.array([True, False, False, True])
            seed = [None, 11, None, 12] if t == 33 else None
            seen = [pool.reset(seed=seed, options={"reset_mask": mask.copy()})[0] for pool in both]
            np.testing.assert_array_equal(*seen)
        (*found, infos), (*expected, wanted) = (pool.step(action) for pool in both)
        for one, two in zip(found, expected, strict=True):
            assert one.dtype == two.dtype
            np.testing.assert_array_equal(one, two)
        assert infos.keys() == wanted.keys()
        infos_seen += len(infos) > 0
        for name in ("final_obs", "episode"):
            if name in infos:
                over = infos[f"_{name}"]
                assert np.array_equal(over, wanted[f"_{name}"])
                for row in np.flatnonzero(over):
                    if name == "episode":
                        assert infos[name]["l"][row] == wanted[name]["l"][row]
                        assert infos[name]["r"][row] == wanted[name]["r"][row]
                    else:
                        np.testing.assert_array_equal(infos[name][row], wanted[name][row])
        ended = expected[2] | expected[3]
        assert_same(torch_pool.save(), twin.save())
    assert infos_seen > 5
    if mode == "Disabled":
        while not ended.any():
            ended = np.logical_or(*torch_pool.step(action)[2:4])
        with pytest.raises(RuntimeError, match="has ended and nothing resets it"):
            torch_pool.step(action)
        torch_pool.restore(twin.save())
    else:  # a round begins the episodes that wait for their beginning
        actions = actions_for(environment_id, (9, 4))
        assert_same(play(torch_pool, actions), play(twin, actions))
    assert_same(torch_pool.save(), twin.save())


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_an_episode_that_had_ended_when_saved_is_reset(mode: str):
    """In every mode the next step resets only the environments whose episode had ended."""
    saved = native.make("CartPole-v1", 6, 1, 9, "NextStep")
    saved.reset(seed=4)
    actions = np.ones((5, 6), dtype=np.int64)
    while not 0 < saved.save()["episode_ended"].sum() < 6:
        saved.step(actions[0])
    torch_pool, twin = pools("CartPole-v1", 6, 9, mode)
    for pool in (torch_pool, twin):
        pool.restore(saved.save())
    for action in actions:
        for found, expected in zip(torch_pool.step(action)[:4], twin.step(action)[:4], strict=True):
            np.testing.assert_array_equal(found, expected)
        assert_same(torch_pool.save(), twin.save())


def test_a_pool_without_seeds_draws_them():
    """Two unseeded pools start differently."""
    starts = [make_torch_pool("CartPole-v1", 3).reset()[0].tobytes() for _ in range(2)]
    assert starts[0] != starts[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": "Ant-v5"}, "'Ant-v5' cannot be stepped in tensors"),
        ({"num_threads": 2, "batch_size": 1}, "num_threads, batch_size is a setting of native pools"),
        ({"render_mode": "rgb_array"}, "render_mode is a setting of native pools"),
        ({"gravitation": 3.0}, "no configuration field 'gravitation'; its fields: gravity=9.8"),
        ({"length": 0.0}, "must be > 0"),
        ({"num_envs": 0}, "num_envs must be an integer of at least 1"),
        ({"autoreset_mode": "Never"}, "autoreset_mode is 'Never'"),
        ({"device": "nowhere"}, "device 'nowhere'"),
        ({"device": "meta"}, "no kernels for the device 'meta'; expected cpu, or cuda"),
    ],
)
def test_invalid_arguments_are_refused_by_name(arguments: dict[str, Any], message: str):
    """The error has the setting, its value, and what would be right."""
    with pytest.raises(ConfigError, match=message):
        make_torch_pool(**({"id": "CartPole-v1", "num_envs": 2} | arguments))
