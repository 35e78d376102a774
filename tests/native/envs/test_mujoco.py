"""The MuJoCo tasks equal Gymnasium's: compared with ==, over whole episodes and the resets between them."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from penstock import native
from penstock.native.pool import mujoco_library

from ...support.processes.alone import run_alone
from ...support.slow import slow_after

mujoco = pytest.importorskip("mujoco", reason="comes with penstock-rl[mujoco]")
pytest.importorskip("imageio", reason="Gymnasium's MuJoCo environments import it; it comes with penstock-rl[test]")

# Vectors, which infos of a pool do not carry.
UNREPORTED = {"tendon_length", "tendon_velocity"}
# Long episodes of many seeds take minutes; the suite's part of them is one, and more are asked for by this variable.
SEEDS_TO_THE_LIMIT = int(os.environ.get("PENSTOCK_EQUALITY_SEEDS", "1"))
SHORT = {"Hopper-v5", "Humanoid-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Reacher-v5", "Walker2d-v5"}
"""Tasks whose whole episodes under random actions have tens of steps."""
CAN_FALL = ("Ant-v5", "Hopper-v5", "Humanoid-v5", "Walker2d-v5")


@pytest.fixture(autouse=True)
def _log_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """MuJoCo writes its warnings to a file in the working directory."""
    monkeypatch.chdir(tmp_path)


def actions_of(env_id: str, num_envs: int, steps: int, seed: int = 0, scale: float = 1.2) -> np.ndarray:
    """Random actions [steps, num_envs, ...], by default some of them beyond the bounds: MuJoCo clips those."""
    single = native.make(env_id, 1)
    high = single.single_action_space.high
    single.close()
    uniform = np.random.default_rng(seed).uniform(-scale, scale, (steps, num_envs, *high.shape))
    return (uniform * high).astype(np.float32)


def assert_infos(infos: dict[str, Any], index: int, expected: dict[str, Any]) -> None:
    for name in expected.keys() - UNREPORTED:
        assert infos[f"_{name}"][index]
        assert infos[name][index] == expected[name], name


def play_both(
    env_id: str,
    seeds: list[int],
    actions: np.ndarray,
    max_episode_steps: int | None = None,
    config: dict[str, Any] | None = None,
    their_config: dict[str, Any] | None = None,
) -> dict[str, int]:
    """Step a pool and as many of Gymnasium's environments, demanding equality of everything; count what ended how."""
    pool = native.make(env_id, len(seeds), 1, max_episode_steps, "SameStep", **(config or {}))
    singles = [
        gymnasium.make(env_id, max_episode_steps=max_episode_steps, disable_env_checker=True, **(their_config or {}))
        for _ in seeds
    ]
    observation, infos = pool.reset(seed=seeds)
    for index, (env, seed) in enumerate(zip(singles, seeds, strict=True)):
        seen, info = env.reset(seed=seed)
        assert seen.dtype == observation.dtype == np.float64
        assert np.array_equal(observation[index], seen)
        assert_infos(infos, index, info)
        assert infos.keys() == {prefix + name for name in info.keys() - UNREPORTED for prefix in ("", "_")}
    counts = {"terminated": 0, "truncated": 0}
    for action in actions:
        observation, reward, terminated, truncated, infos = pool.step(action)
        for index, env in enumerate(singles):
            seen, wanted_reward, wanted_terminated, wanted_truncated, info = env.step(action[index])
            assert reward[index] == wanted_reward
            assert (terminated[index], truncated[index]) == (wanted_terminated, wanted_truncated)
            if wanted_terminated or wanted_truncated:
                counts["terminated"] += bool(wanted_terminated)
                counts["truncated"] += bool(wanted_truncated)
                assert np.array_equal(infos["final_obs"][index], seen)
                assert_infos(infos["final_info"], index, info)
                seen, info = env.reset()
            assert np.array_equal(observation[index], seen)
            assert_infos(infos, index, info)
    for env in (*singles, pool):
        env.close()
    return counts


@pytest.mark.parametrize("number", [8, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("env_id", mujoco_library.IDS)
def test_task_equals_gymnasium_over_many_seeds(env_id: str, number: int):
    """Observations, rewards, flags and infos over episodes, whole ones where they are short, and what follows them."""
    seeds = [11 * index for index in range(number)]
    limit, steps = (None, 60) if env_id in SHORT else (16, 24)

    counts = play_both(env_id, seeds, actions_of(env_id, len(seeds), steps), max_episode_steps=limit)

    assert counts["terminated"] + counts["truncated"] >= number


@pytest.mark.parametrize("env_id", slow_after(4, mujoco_library.IDS))
def test_task_equals_gymnasium_over_whole_episodes(env_id: str):
    """Episodes as long as the task's own limit allows, or until it ends them, and the beginning of the next."""
    limit = gymnasium.spec(env_id).max_episode_steps
    config = {"terminate_when_unhealthy": False} if env_id in CAN_FALL else {}

    seeds = list(range(3, 3 + SEEDS_TO_THE_LIMIT))

    counts = play_both(env_id, seeds, actions_of(env_id, len(seeds), limit + 10), None, config, config)

    if "Pendulum" in env_id:
        assert counts["terminated"] > 10
    else:
        assert counts == {"terminated": 0, "truncated": len(seeds)}


@pytest.mark.parametrize("env_id", CAN_FALL)
def test_falls_equal_gymnasium(env_id: str):
    """Episodes that end because the robot is no longer healthy: in exactly the same step, with the same reward."""
    counts = play_both(env_id, [1, 2, 3, 4], actions_of(env_id, 4, 150))

    assert counts["terminated"] >= 4


def test_balanced_pendulum_equals_gymnasium_to_the_time_limit():
    """InvertedPendulum-v5 under a policy that keeps it up: truncated after 1000 steps, return 1000."""
    pool = native.make("InvertedPendulum-v5", 2, autoreset_mode="SameStep", record_episode_statistics=True)
    observation, _ = pool.reset(seed=[0, 1])
    actions = []
    for _ in range(1000):
        actions.append((observation @ np.array([0.5, 29.0, 1.3, 2.9]))[:, None].astype(np.float32))
        observation, *_, infos = pool.step(actions[-1])
    pool.close()

    assert infos["episode"]["r"].tolist() == [1000.0, 1000.0]
    assert play_both("InvertedPendulum-v5", [0, 1], np.stack(actions)) == {"terminated": 0, "truncated": 2}


CONFIGURED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Ant-v5": (
        {"healthy_z_min": 0.3, "healthy_z_max": 0.9, "contact_force_min": -0.5, "contact_force_max": 0.25},
        {"healthy_z_range": (0.3, 0.9), "contact_force_range": (-0.5, 0.25)},
    ),
    "Hopper-v5": (
        {
            "healthy_state_min": -5.0,
            "healthy_state_max": 5.0,
            "healthy_z_min": 0.9,
            "healthy_z_max": float("inf"),
            "healthy_angle_min": -0.1,
            "healthy_angle_max": 0.3,
        },
        {
            "healthy_state_range": (-5.0, 5.0),
            "healthy_z_range": (0.9, float("inf")),
            "healthy_angle_range": (-0.1, 0.3),
        },
    ),
    "Humanoid-v5": (
        {"healthy_z_min": 1.2, "healthy_z_max": 1.6, "contact_cost_min": 0.001, "contact_cost_max": 0.01},
        {"healthy_z_range": (1.2, 1.6), "contact_cost_range": (0.001, 0.01)},
    ),
    "HumanoidStandup-v5": (
        {"impact_cost_min": 0.001, "impact_cost_max": 0.01},
        {"impact_cost_range": (0.001, 0.01)},
    ),
    "Walker2d-v5": (
        {"healthy_z_min": 1.1, "healthy_z_max": 1.4, "healthy_angle_min": -0.5, "healthy_angle_max": 0.25},
        {"healthy_z_range": (1.1, 1.4), "healthy_angle_range": (-0.5, 0.25)},
    ),
}


@pytest.mark.parametrize("env_id", mujoco_library.IDS)
def test_configuration_equals_gymnasium(env_id: str):
    """Every field that is one of Gymnasium's keyword arguments, at another value than its default; ranges as pairs."""
    ours, theirs = CONFIGURED.get(env_id, ({}, {}))
    pool = native.make(env_id, 1)
    defaults = {name: value[0] for name, value in pool.config.items()}
    pool.close()
    same: dict[str, Any] = {
        name: float(value) * 1.37 for name, value in defaults.items() if value.dtype == np.float64 and name not in ours
    }
    same |= {"frame_skip": int(defaults["frame_skip"]) + 1}
    if env_id == "Ant-v5":
        same["main_body"] = 3

    play_both(env_id, [5, 6, 7], actions_of(env_id, 3, 60), 50, {**ours, **same}, {**theirs, **same})


PARTS = [
    (env_id, part)
    for env_id in mujoco_library.IDS
    for part in native.make(env_id, 1).config
    if part.endswith("_observation")
]


@pytest.mark.parametrize(("env_id", "part"), PARTS)
def test_parts_of_the_observation_equal_gymnasium(env_id: str, part: str):
    """Each `exclude_` and `include_` the other way: the same space, and the same values in it."""
    default = bool(native.make(env_id, 1).config[part][0])
    changed = {part: not default}
    pool, env = native.make(env_id, 2, **changed), gymnasium.make(env_id, **changed)
    assert pool.single_observation_space == env.observation_space
    assert pool.environment["observation"]["shape"] == env.observation_space.shape
    env.close()
    pool.close()

    play_both(env_id, [5, 6], actions_of(env_id, 2, 40), 25, changed, changed)


def test_all_parts_of_the_observation_left_out_equal_gymnasium():
    """Humanoid-v5 with positions and without all else, through rounds and a saved state as well."""
    changed = {part: False for env_id, part in PARTS if env_id == "Humanoid-v5"}
    play_both("Humanoid-v5", [1, 2, 3], actions_of("Humanoid-v5", 3, 40), None, changed, changed)

    pool, steps = native.make("Humanoid-v5", 3, **changed), 8
    pool.reset(seed=4)
    width = pool.single_observation_space.shape[0]
    assert width == 47
    observation = np.zeros((steps, 3, width))
    flags = [np.zeros((steps, 3), np.uint8) for _ in range(2)]
    pool.begin_round(observation, np.zeros((steps, 3), np.float32), *flags, np.zeros((steps, 3), np.int32))
    for t, action in enumerate(actions_of("Humanoid-v5", 3, steps)):
        pool.step_round(t, action)
    assert pool.end_round().bootstrap_observation.shape == (3, width)
    other = native.make("Humanoid-v5", 3, **changed)
    other.restore(pool.save())
    assert np.array_equal(other.observation, pool.observation)


def test_what_is_observed_is_the_same_for_a_whole_pool():
    """A length that differs between environments, or changes, is refused; so is a state of another configuration."""
    part = "exclude_current_positions_from_observation"
    with pytest.raises(ValueError, match="environment 1 would observe 29 values, expected the pool's 27"):
        native.make("Ant-v5", 2, include_cfrc_ext_in_observation=False, **{part: [True, False]})
    pool = native.make("HalfCheetah-v5", 2)
    with pytest.raises(ValueError, match="environment 0 would observe 18 values, expected the pool's 17"):
        pool.set_attr(part, False)
    pool.reset(seed=0)
    other = native.make("HalfCheetah-v5", 2, **{part: False})
    with pytest.raises(ValueError, match=f"config.{part} of environment 0"):
        other.restore(pool.save())


def test_a_state_from_before_a_field_existed_is_restored():
    """Its fields had what is the default now; a pool with another value of such a field refuses it."""
    pool = native.make("Swimmer-v5", 2)
    pool.reset(seed=1)
    old = pool.save()
    del old["config.frame_skip"]
    other = native.make("Swimmer-v5", 2)
    other.restore(old)
    assert np.array_equal(other.observation, pool.observation)
    with pytest.raises(ValueError, match=r"config.frame_skip of environment 0"):
        native.make("Swimmer-v5", 2, frame_skip=2).restore(old)


def test_ranges_are_given_as_gymnasium_takes_them():
    """A pair `x_range` is `x_min` and `x_max`; both ways at once, and what is no pair, are refused."""
    _, theirs = CONFIGURED["Hopper-v5"]
    play_both("Hopper-v5", [1, 2], actions_of("Hopper-v5", 2, 60), 50, theirs, theirs)
    with pytest.raises(ValueError, match="healthy_z_range and healthy_z_min say the same"):
        native.make("Hopper-v5", 1, healthy_z_range=(0.5, 1.0), healthy_z_min=0.4)
    with pytest.raises(ValueError, match=r"healthy_z_range must be a pair of numbers, the lower bound first, got 0.5"):
        native.make("Hopper-v5", 1, healthy_z_range=0.5)
    with pytest.raises(ValueError, match="frame_skip must be 1 to 1000000"):
        native.make("Hopper-v5", 1, frame_skip=0)


@pytest.mark.parametrize("env_id", mujoco_library.IDS)
def test_spaces_and_limits_equal_gymnasium(env_id: str):
    """Spaces, time limit and reward threshold are those of gymnasium.make."""
    pool = native.make(env_id, 1)
    env = gymnasium.make(env_id)

    assert pool.single_observation_space == env.observation_space
    assert pool.single_action_space == env.action_space
    assert pool.environment["max_episode_steps"] == env.spec.max_episode_steps
    assert pool.environment["reward_threshold"] == env.spec.reward_threshold
    env.close()
    pool.close()


@pytest.mark.parametrize(
    ("env_id", "scale"), [("HalfCheetah-v5", 1e7), ("Ant-v5", 1e12), ("Hopper-v5", 1e6), ("Humanoid-v5", 1e11)]
)
def test_unstable_simulation_behaves_as_in_gymnasium(env_id: str, scale: float, capfd: pytest.CaptureFixture[str]):
    """From an absurd start MuJoCo warns and resets its data within a step: the pool continues with the same numbers."""
    mujoco.set_mju_user_warning(None)  # dm_control, once imported, takes the warnings of the process
    config = {"reset_noise_scale": scale}
    if env_id in CAN_FALL:
        config["terminate_when_unhealthy"] = False

    play_both(env_id, [0, 1, 2], actions_of(env_id, 3, 30), 25, config, config)

    assert "Nan, Inf or huge value in Q" in capfd.readouterr().err


@pytest.mark.parametrize("env_id", ["Ant-v5", "Humanoid-v5", "Pusher-v5"])
def test_results_do_not_depend_on_the_number_of_threads(env_id: str):
    """One thread and three: the same bits, and the same saved state."""
    pools = [native.make(env_id, 7, threads, 30, "SameStep") for threads in (1, 3)]
    results = [[pool.reset(seed=5)[0] for pool in pools]]
    for action in actions_of(env_id, 7, 50):
        results += zip(*(pool.step(action)[:4] for pool in pools), strict=True)

    assert all(np.array_equal(one, three) for one, three in results)
    one, three = (pool.save() for pool in pools)
    assert all(one[name].tobytes() == three[name].tobytes() for name in one)
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("env_id", mujoco_library.IDS)
@pytest.mark.parametrize("pause", [0, 17, 25])
def test_restored_pool_resumes_bit_for_bit(env_id: str, pause: int):
    """Saved after a reset, in the middle of an episode and where all end; restored in a used and in a new pool."""
    actions = actions_of(env_id, 3, pause + 27)
    pools = [native.make(env_id, 3, 1, 25) for _ in range(3)]
    for index, pool in enumerate(pools):
        pool.reset(seed=index)
    for action in actions[:pause]:
        pools[0].step(action)
    for action in actions[2:12]:
        pools[1].step(action)
    state = pools[0].save()
    for pool in pools[1:]:
        pool.restore(state)
    assert all(np.array_equal(pools[0].observation, pool.observation) for pool in pools[1:])

    for action in actions[pause:]:
        wanted = pools[0].step(action)
        for pool in pools[1:]:
            step = pool.step(action)
            assert all(np.array_equal(one, two) for one, two in zip(wanted[:4], step[:4], strict=True))
            assert all(np.array_equal(wanted[4][name], step[4][name]) for name in wanted[4])
    saved = [pool.save() for pool in pools]
    assert all(saved[0][name].tobytes() == other[name].tobytes() for other in saved[1:] for name in saved[0])
    for pool in pools:
        pool.close()


def test_pickled_pool_resumes_in_another_process(tmp_path: Path):
    """A process that has loaded nothing yet unpickles a pool and steps it to the same numbers."""
    pool = native.make("Ant-v5", 2)
    pool.reset(seed=4)
    actions = actions_of("Ant-v5", 2, 9)
    for action in actions[:4]:
        pool.step(action)
    (tmp_path / "pool").write_bytes(pickle.dumps((pool, actions[4:])))
    out = run_alone(f"""
import os
import pickle
pool, actions = pickle.loads(open({str(tmp_path / "pool")!r}, "rb").read())
print([pool.step(action)[0].tobytes().hex() for action in actions][-1])
""")

    assert out.strip() == [pool.step(action)[0].tobytes().hex() for action in actions[4:]][-1]
    pool.close()


def test_wrong_configuration_is_refused():
    """A limit whose default is infinite may be infinite, nothing else; what Gymnasium cannot run is refused too."""
    native.make("Hopper-v5", 1, healthy_z_max=float("inf")).close()
    with pytest.raises(ValueError, match="healthy_z_max must be finite, got nan"):
        native.make("Hopper-v5", 1, healthy_z_max=float("nan"))
    with pytest.raises(ValueError, match="healthy_z_max must be finite, got inf"):
        native.make("Walker2d-v5", 1, healthy_z_max=float("inf"))
    with pytest.raises(ValueError, match="main_body is the number of a body, 0 to 13"):
        native.make("Ant-v5", 1, main_body=14)
    with pytest.raises(ValueError, match="reset_noise_scale must be >= 0"):
        native.make("Swimmer-v5", 1, reset_noise_scale=-0.1)


def heavier(tmp_path: Path, name: str = "ant") -> Path:
    """Return a model of the same structure, each of whose parts weighs 0.3 kg at least."""
    path = tmp_path / f"heavy_{name}.xml"
    text = mujoco_library.model_path(f"{name}.xml").read_text()
    path.write_text(text.replace("<option", '<compiler boundmass="0.3"/><option', 1))
    return path


@pytest.mark.parametrize(("env_id", "name"), [("Ant-v5", "ant"), ("Hopper-v5", "hopper"), ("Reacher-v5", "reacher")])
def test_another_model_equals_gymnasium(env_id: str, name: str, tmp_path: Path):
    """A file of the same structure: steps, limits and infos are those of Gymnasium with that file, also from a copy."""
    settings = {"xml_file": str(heavier(tmp_path, name))}
    play_both(env_id, [1, 2], actions_of(env_id, 2, 40), 25, settings, settings)
    pool = native.make(env_id, 1, **settings)
    pool.reset(seed=0)
    copy = pickle.loads(pickle.dumps(pool))
    action = actions_of(env_id, 1, 1)[0]
    assert np.array_equal(pool.step(action)[0], copy.step(action)[0])
    assert pool.spec is not None
    assert pool.spec.kwargs["xml_file"] == settings["xml_file"]


def test_a_model_of_another_structure_is_refused(tmp_path: Path):
    """With what it has and what was expected; and so is no model, before anything starts."""
    broken = tmp_path / "broken.xml"
    broken.write_text("<mujoco><worldbody><body></mujoco>")
    with pytest.raises(
        ValueError, match=r"found a model with 6 positions.*expected the structure of Gymnasium's ant.xml"
    ):
        native.make("Ant-v5", 1, xml_file="hopper.xml")
    no_tip = tmp_path / "no_tip.xml"
    no_tip.write_text(re.sub("<site [^>]*>", "", mujoco_library.model_path("inverted_double_pendulum.xml").read_text()))
    with pytest.raises(ValueError, match=r"found a model with 3 positions.*, at least 1 site, no activations"):
        native.make("InvertedDoublePendulum-v5", 1, xml_file=str(no_tip))
    with pytest.raises(ValueError, match=r"cannot load .*broken.xml: XML"):
        native.make("Ant-v5", 1, xml_file=str(broken))
    with pytest.raises(ValueError, match=r"found no file .*absent.xml' that ends in .xml"):
        native.make("Ant-v5", 1, xml_file="absent.xml")
    with pytest.raises(ValueError, match="xml_file must be text, one for the whole pool"):
        native.make("Ant-v5", 2, xml_file=["ant.xml", "ant.xml"])


def test_a_main_body_has_a_name(tmp_path: Path):
    """As in Gymnasium; one for each environment, set later, and of another model too."""
    named, numbered = {"main_body": "front_left_leg"}, {"main_body": 2}
    play_both("Ant-v5", [1, 2], actions_of("Ant-v5", 2, 40), 25, named, named)
    play_both("Ant-v5", [1, 2], actions_of("Ant-v5", 2, 40), 25, named, numbered)
    pool = native.make("Ant-v5", 2, main_body=["torso", "right_back_leg"], xml_file=str(heavier(tmp_path)))
    assert pool.config["main_body"].tolist() == [1, 11]
    pool.set_attr("main_body", "front_right_leg")
    assert pool.config["main_body"].tolist() == [5, 5]
    with pytest.raises(
        ValueError, match="main_body = 'head': expected a number, or one of the model's bodies: world, torso"
    ):
        native.make("Ant-v5", 1, main_body="head")
