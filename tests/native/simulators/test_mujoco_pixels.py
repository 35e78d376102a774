"""MuJoCo's tasks seen as pictures: frames of the states that the pool in C++ steps, saved and restored with them."""

from pathlib import Path

import pytest

from penstock import native

from ...support.processes.drawing import drawn

pytest.importorskip("mujoco", reason="comes with penstock-rl[mujoco]")
pytest.importorskip("imageio", reason="Gymnasium's MuJoCo environments import it; it comes with penstock-rl[test]")

PROGRAM = """
import numpy as np
from gymnasium.vector import AutoresetMode
from penstock import native

size = {"observation": "pixels", "height": 24, "width": 32}
def made(mode="NextStep", **settings):
    return native.make("Hopper-v5", 2, autoreset_mode=mode, max_episode_steps=4, **size, **settings)

def action(seed, steps=12):
    return np.random.default_rng(seed).uniform(-1, 1, (steps, 2, 3)).astype(np.float32)

# The rewards, ends and infos of the pool that observes states; a frame is a function of the state.
for mode in ("NextStep", "SameStep", "Disabled"):
    pixels, states = made(mode), native.make("Hopper-v5", 2, autoreset_mode=mode, max_episode_steps=4)
    seen, infos = pixels.reset(seed=3)
    _, told = states.reset(seed=3)
    same = [infos.keys() == told.keys()]
    for row in action(0, 4 if mode == "Disabled" else 12):
        seen, *got, infos = pixels.step(row)
        _, *wanted, told = states.step(row)
        same += [np.array_equal(*pair) for pair in zip(got, wanted)]
        same += [infos.keys() == told.keys() and all(np.array_equal(infos[n], told[n]) for n in told
                                                     if not n.startswith(("final", "_final")))]
        if "final_obs" in told:
            same += [np.array_equal(infos["final_info"][n], told["final_info"][n]) for n in told["final_info"]]
            same += [infos["final_obs"][0].shape == (3, 24, 32)]
    print(mode, all(same), seen.shape, seen.dtype, len(np.unique(seen)) > 8)

# Rounds, and the same bytes from a saved state.
def play(pool, rows):
    shape = (len(rows), 2)
    buffers = [np.zeros((*shape, 3, 24, 32), np.uint8), np.zeros(shape, np.float32), np.zeros(shape, np.uint8),
               np.zeros(shape, np.uint8), np.zeros(shape, np.int32)]
    pool.begin_round(*buffers)
    for t, row in enumerate(rows):
        pool.step_round(t, row)
    end = pool.end_round()
    return [*(buffer.tobytes() for buffer in buffers), end.bootstrap_observation.tobytes(),
            end.episodes["length"].tolist()]

pool, other = made(), made()
pool.reset_ids(np.arange(2, dtype=np.uint64))
print(play(pool, action(1))[-1], pool.restores_by_replay)
saved = pool.save()
other.restore(saved)
print(play(pool, action(2)) == play(other, action(2)))

# A state that is none changes nothing, and one with ended episodes is for next-step mode.
for state in ({name: of for name, of in saved.items() if name != "state"}, {**saved, "own.over": np.ones(2, np.bool_)}):
    same, rows = made("SameStep"), action(3)
    same.reset(seed=1)
    try:
        same.restore(state)
    except native.StateNotSupportedError as error:
        same.step(rows[0])
        print("ended episodes" in str(error), end=" ")
print()

# Cameras: the default one follows the robot, and another model has its own.
for settings in ({}, {"camera": "track"}):
    camera = made(**settings)
    print(camera.reset(seed=1)[0].tobytes() == made().reset(seed=1)[0].tobytes(), end=" ")
pusher = native.make("Reacher-v5", 1, observation="pixels", height=16, width=16)
print(len(np.unique(pusher.reset(seed=0)[0])) > 3, pusher.environment["observation"])
"""

BESIDE = """
import gc, threading
import numpy as np
from penstock import native

def pixels(task="Hopper-v5", size=24):
    return native.make(task, 1, observation="pixels", height=size, width=32)

def drawn(task="Hopper-v5"):
    return native.make(task, 1, render_mode="rgb_array")

def suite():
    return native.make("dmc/cartpole-balance", 1, render_mode="rgb_array")

def begun(pool):
    if pool.reset(seed=1)[0].ndim < 4:
        pool.render()
    return pool

def seen(pool):
    action = np.zeros((1, *pool.single_action_space.shape), np.float32)
    observed = pool.step(action)[0]
    frame = observed if observed.ndim == 4 else pool.render()[0]
    assert frame.std() > 5
    return frame.tobytes()

def in_thread(call):
    got = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    thread.join()
    return got[0]

def begin():
    return begun(make())

for make in (pixels, drawn, suite):
    alone = seen(begin())
    pools = [begin() for _ in range(4)]
    others = [begun(pixels("Reacher-v5", 40)), begun(drawn("Ant-v5")), begun(suite())]
    same = [seen(pools[0]) == alone]
    closed = begin()
    closed.close()
    same += [seen(pools[1]) == alone]
    for other in others:
        other.close()
    del other, others, closed
    gc.collect()
    same += [seen(pools[2]) == alone, in_thread(lambda: seen(pools[3])) == alone, seen(in_thread(begin)) == alone]
    print(make.__name__, same)
"""


def lines_of(program: str, *cwd: Path) -> list[str]:
    """Return what a program prints that draws; nothing may come beside it."""
    done = drawn(program, *cwd)
    assert not done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_pictures_do_not_depend_on_other_pools_or_threads():
    """Beside others that were made, drawn, closed and collected since, and in another thread than the first one's."""
    assert lines_of(BESIDE) == [f"{name} {[True] * 5}" for name in ("pixels", "drawn", "suite")]


@pytest.mark.slow
def test_a_context_is_given_back_whatever_mujoco_chose_at_its_import():
    """Gymnasium chooses when it draws, and here differently: at the import nothing said that there is no display."""
    beside = BESIDE.replace("(pixels, drawn, suite)", "(pixels, drawn)").replace(", begun(suite())", "")
    assert lines_of(f"import mujoco\n{beside}") == [f"{name} {[True] * 5}" for name in ("pixels", "drawn")]


@pytest.mark.slow
def test_drawing_prints_nothing_and_leaves_no_file(tmp_path):
    """MuJoCo warns of what is old in a model, HalfCheetah's too, on standard error and in a file of the folder."""
    make = "from penstock import native; native.make('HalfCheetah-v5', 1, observation='pixels').close()"
    assert lines_of(f"{make}; print('made')", tmp_path) == ["made"]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_pictures_are_seen_in_place_of_states():
    """Rewards, ends and infos stay, in every mode; rounds and saved states; the default camera follows the robot."""
    assert lines_of(PROGRAM) == [
        "NextStep True (2, 3, 24, 32) uint8 True",
        "SameStep True (2, 3, 24, 32) uint8 True",
        "Disabled True (2, 3, 24, 32) uint8 True",
        "[4, 4, 4, 4, 4, 4] False",
        "True",
        "False True ",
        "True True True {'dtype': 'uint8', 'shape': (3, 16, 16)}",
    ]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"height": 8}, "height: expected observation = 'pixels'; set that too, or leave it out"),
        ({"observation": "words"}, "observation is 'words', expected 'state' or 'pixels'"),
        ({"observation": "pixels", "width": 0}, "width is 0, expected 1 to 4096 pixels"),
        (
            {"observation": "pixels", "camera": "side"},
            "camera is 'side', expected one of the model's: track; leave it out",
        ),
        ({"observation": "pixels", "batch_size": 1}, "batch_size = 1: with observation = 'pixels' a pool steps"),
        ({"observation": "pixels", "healthy_reward": "much"}, "healthy_reward must be float"),
    ],
)
def test_settings_that_fit_no_picture_are_refused(settings, reason):
    """When the pool is made, before anything is drawn."""
    with pytest.raises(ValueError, match=reason):
        native.make("Hopper-v5", 1, **settings)


def test_states_are_what_is_observed_by_default():
    """Said or not; and the settings of pictures have types, which a run checks."""
    assert native.make("Hopper-v5", 1, observation="state").single_observation_space.shape == (11,)
    types = native.setting_types("Hopper-v5")
    assert (types["observation"], types["height"], types["camera"]) == (str, int, str)
