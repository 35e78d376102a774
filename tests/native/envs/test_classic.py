"""MountainCar, MountainCarContinuous and Acrobot equal Gymnasium's with ==, over whole episodes and resets."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from penstock import native

from ...support.environments.playing import Policy, play, play_both, random_actions

ENVIRONMENTS = ["MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]
SEEDS = [7 * index for index in range(50)]


def swing(observation: np.ndarray) -> np.ndarray:
    """Push the way the car goes, which takes it up to the flag."""
    return np.where(observation[:, 1] >= 0, 2, 0)


def swing_hard(observation: np.ndarray) -> np.ndarray:
    """The same beyond the bounds, at them and within them: the force is a Python float in the first case alone."""
    size = np.resize(np.float32([1.1, 1.0, 0.9]), len(observation))
    return np.where(observation[:, 1] >= 0, size, -size)[:, None]


def pump(observation: np.ndarray) -> np.ndarray:
    """Add energy to the second joint, which swings most acrobots up in less than 200 steps."""
    return np.where(observation[:, 5] >= 0, 2, 0)


WINNING: dict[str, Policy] = dict(zip(ENVIRONMENTS, [swing, swing_hard, pump], strict=True))


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_winning_episodes_equal_gymnasium(env_id: str):
    """50 seeds: episodes that end at the goal, the resets after them, and the episodes that those begin."""
    counts = play_both(env_id, SEEDS, 250, WINNING[env_id])

    assert counts["terminated"] > 50


@pytest.mark.parametrize(
    ("env_id", "steps"), [("MountainCar-v0", 201), ("MountainCarContinuous-v0", 1000), ("Acrobot-v1", 501)]
)
def test_random_episodes_equal_gymnasium_to_the_time_limit(env_id: str, steps: int):
    """50 seeds, random actions, also beyond the bounds, until Gymnasium's own time limit and one step further."""
    counts = play_both(env_id, SEEDS, steps, random_actions(0, env_id, len(SEEDS)))

    assert counts["truncated"] + counts["terminated"] >= len(SEEDS)
    assert counts["truncated"] > 0


@pytest.mark.parametrize("env_id", ["MountainCarContinuous-v0", "Acrobot-v1"])
def test_random_episodes_equal_gymnasium(env_id: str):
    """50 seeds under random actions with a short limit: many resets, each of which the next depends on."""
    counts = play_both(env_id, SEEDS, 90, random_actions(1, env_id, len(SEEDS)), max_episode_steps=40)

    assert counts["truncated"] == 100


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_both_flags_hold_in_the_last_allowed_step(env_id: str):
    """An episode that reaches the goal in exactly the last allowed step reports both; one step less, only one."""
    with gymnasium.make(env_id) as alone:
        observation, _ = alone.reset(seed=3)
        terminated, length = False, 0
        while not terminated:
            observation, _, terminated, truncated, _ = alone.step(WINNING[env_id](observation[None])[0])
            assert terminated or not truncated
            length += 1

    for limit, expected in [
        (length, {"terminated": 1, "truncated": 1, "both": 1}),
        (length - 1, {"terminated": 0, "truncated": 1, "both": 0}),
        (length + 1, {"terminated": 1, "truncated": 0, "both": 0}),
    ]:
        assert play_both(env_id, [3], length, WINNING[env_id], max_episode_steps=limit) == expected


@pytest.mark.parametrize("env_id", ["MountainCar-v0", "MountainCarContinuous-v0"])
def test_goal_velocity_equals_gymnasium(env_id: str):
    """A goal that asks for speed, another for each environment; one that only a car of exactly the top speed meets."""
    speeds = [0.0, 0.02, 0.03, 0.0300001, 0.04, 0.0699999, 0.07, 0.07000000000000002]

    counts = play_both(env_id, list(range(8)), 400, WINNING[env_id], goal_velocity=speeds)

    assert counts["terminated"] > 0
    assert counts["truncated"] > 0 or env_id == "MountainCarContinuous-v0"


def play_changed(env_id: str, attributes: dict[str, list[Any]], steps: int, policy: Policy, **config: Any) -> None:
    """Play a configured pool next to Gymnasium's environments with their attributes changed."""
    num_envs = len(next(iter(attributes.values())))
    singles = [gymnasium.make(env_id) for _ in range(num_envs)]
    for name, values in attributes.items():
        for env, value in zip(singles, values, strict=True):
            assert hasattr(env.unwrapped, name)
            setattr(env.unwrapped, name, value)
    pool = native.make(env_id, num_envs, 2, autoreset_mode="SameStep", **config)
    play(pool, singles, list(range(num_envs)), steps, policy)


def test_changed_cars_equal_gymnasium():
    """Custom engines and gravity for each car; an engine that reaches the top speed in the first step."""
    forces, gravities = [0.001, 0.0013, 0.2, 0.01], [0.0025, 0.001, 0.0025, -0.003]
    play_changed(
        "MountainCar-v0",
        {"force": forces, "gravity": gravities},
        250,
        random_actions(2, "MountainCar-v0", 4),
        force=forces,
        gravity=gravities,
    )
    powers = [0.0015, 0.01, 0.2, 0.05]
    play_changed(
        "MountainCarContinuous-v0",
        {"power": powers},
        300,
        random_actions(2, "MountainCarContinuous-v0", 4),
        power=powers,
    )


def test_changed_acrobots_equal_gymnasium():
    """Every length, mass and centre of mass, the inertia, the step, the paper's equations: one value an environment."""
    generator = np.random.default_rng(5)
    names = ["LINK_LENGTH_1", "LINK_MASS_1", "LINK_MASS_2", "LINK_COM_POS_1", "LINK_COM_POS_2", "LINK_MOI"]
    attributes: dict[str, list[Any]] = {name: generator.uniform(0.5, 1.5, 8).tolist() for name in names}
    attributes["dt"] = generator.uniform(0.02, 0.2, 8).tolist()
    config = {name.lower(): values for name, values in attributes.items()}
    attributes["book_or_nips"] = ["book", "nips"] * 4

    play_changed("Acrobot-v1", attributes, 300, pump, nips=[False, True] * 4, **config)


def test_noisy_acrobots_equal_gymnasium():
    """Torque noise is drawn in the step, from the generator that the resets use too."""
    noise = [0.0, 0.5, 1.0, 2.0]

    play_changed("Acrobot-v1", {"torque_noise_max": noise}, 600, pump, torque_noise_max=noise)


def test_noise_resumes_after_a_restore():
    """A restored pool draws the noise that the saved one would have drawn."""
    pool, other = (native.make("Acrobot-v1", 3, torque_noise_max=1.0) for _ in range(2))
    pool.reset(seed=1)
    actions = np.array([0, 1, 2])
    pool.step(actions)
    other.restore(pool.save())
    for _ in range(20):
        assert np.array_equal(pool.step(actions)[0], other.step(actions)[0])


def test_acrobot_that_diverges_is_an_error():
    """An angle that Gymnasium would wrap endlessly raises an error with the environment and the next action."""
    pool = native.make("Acrobot-v1", 2, dt=[0.2, 1e9])
    pool.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"environment 1.*integration diverged.*shorter dt"):
        pool.step(np.array([2, 2]))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dt": 0.0}, "lengths, masses, centres of mass, link_moi and dt must be > 0"),
        ({"link_mass_2": -1.0}, "lengths, masses"),
        ({"LINK_MASS_2": 1.0}, "its fields: link_length_1=1.0"),
    ],
)
def test_impossible_acrobots_are_refused(config: dict[str, float], message: str):
    """Configurations that cannot be integrated are refused when the pool is made."""
    with pytest.raises(ValueError, match=message):
        native.make("Acrobot-v1", 1, **config)


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_threads_change_nothing(env_id: str):
    """1, 2 and 5 threads give the same bits, over resets and noise."""
    config = {"torque_noise_max": 0.3} if env_id == "Acrobot-v1" else {}
    pools = [native.make(env_id, 33, threads, 30, **config) for threads in (1, 2, 5)]
    seen = [[pool.reset(seed=9)[0].tobytes()] for pool in pools]
    actions = random_actions(4, env_id, 33)
    for _ in range(70):
        chosen = actions(np.empty(0))
        for pool, bits in zip(pools, seen, strict=True):
            bits.extend(array.tobytes() for array in pool.step(chosen)[:4])
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(("env_id", "count"), [(ENVIRONMENTS[0], 1000), (ENVIRONMENTS[1], 1000), ("Acrobot-v1", 12000)])
def test_every_seed_is_another_start(env_id: str, count: int):
    """As many seeds show as many first observations, Gymnasium's; the same seed always shows the same.

    An acrobot's sine in double precision, rounded, is another than NumPy's once in 3,000 times.
    """
    pool = native.make(env_id, count)
    first = pool.reset(seed=0)[0]

    with gymnasium.make(env_id) as env:
        assert np.array_equal(first, [env.reset(seed=seed)[0] for seed in range(count)])
    assert len(np.unique(first, axis=0)) == count
    assert np.array_equal(first, pool.reset(seed=0)[0])


BOUNDS = [
    ("CartPole-v1", {"low": -0.2, "high": 0.15}),
    ("CartPole-v1", {"high": "0.3"}),
    ("MountainCar-v0", {"low": -1.0}),
    ("MountainCarContinuous-v0", {"low": -0.9, "high": -0.9}),
    ("Acrobot-v1", {"low": -0.78, "high": 0.7}),
    ("Pendulum-v1", {"x_init": 0.3, "y_init": 2}),
    ("Pendulum-v1", {"y_init": 0.1}),
]


@pytest.mark.parametrize(("env_id", "options"), BOUNDS)
def test_first_states_within_other_bounds_equal_gymnasium(env_id: str, options: dict[str, Any]):
    """Seeded and unseeded, of all and of some; the automatic resets between them have the usual bounds."""
    pool = native.make(env_id, 6, max_episode_steps=7)
    theirs = gymnasium.make_vec(env_id, 6, vectorization_mode="sync", max_episode_steps=7)
    theirs.action_space.seed(1)
    for seed, mask in ((3, None), (None, None), (None, np.arange(6) % 2 == 0), ([1, None, 5, None, None, 2], None)):
        own, same = ({**options, **({} if mask is None else {"reset_mask": mask})} for _ in range(2))
        assert np.array_equal(pool.reset(seed=seed, options=own)[0], theirs.reset(seed=seed, options=same)[0])
        assert own == same == options
        for _ in range(10):
            actions = theirs.action_space.sample()
            for mine, its in zip(pool.step(actions)[:4], theirs.step(actions)[:4], strict=True):
                assert np.array_equal(mine, its)
    pool.close()
    theirs.close()


@pytest.mark.parametrize(("env_id", "options"), BOUNDS)
def test_a_single_environment_takes_the_bounds(env_id: str, options: dict[str, Any]):
    """As `gymnasium.make` of the same id does; without options the usual ones hold again."""
    one, its = native.SingleEnv(env_id), gymnasium.make(env_id)
    for seed, given in ((4, options), (None, options), (None, None)):
        assert np.array_equal(one.reset(seed=seed, options=given)[0], its.reset(seed=seed, options=given)[0])


def test_bounds_of_a_first_view_that_would_differ_are_refused():
    """NumPy's sine and cosine of float32 are known up to pi / 4."""
    for bounds in ({"low": -0.8}, {"high": 1}):
        with pytest.raises(ValueError, match=r"bounds from -0\.78 to 0\.78; 'gymnasium/Acrobot-v1' takes any"):
            native.make("Acrobot-v1", 2).reset(options=bounds)
