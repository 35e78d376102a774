"""Custom environments: compiled, kept, loaded, replaced; and what a person reads when one does not compile."""

import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from penstock import native

pytestmark = pytest.mark.usefixtures("cache")
HERE = Path(__file__).parents[1]
# Compiled for the test's time, not the program's; test_tutorial.py loads one as people do.
QUICK = ["-O0"]

COUNTER = """
#include <penstock/env.hpp>
#include "stride.hpp"
struct Counter {
  static constexpr penstock::Info info{.id = "Counter-v0", .max_episode_steps = 50};
  static constexpr penstock::Discrete<2> action{};
  static constexpr auto observation = penstock::Box<1>::symmetric({1000.0});
  struct Config {
    PENSTOCK_FIELDS(Config)
  } config;
  struct State {
    std::int64_t count;
    PENSTOCK_FIELDS(State, count)
  } state;
  void reset(penstock::Rng&) { state.count = 0; }
  penstock::Step step(std::int64_t) { return {.reward = double(state.count += stride)}; }
  void observe(std::span<float, 1> out) const { out[0] = float(state.count); }
};
"""


@pytest.fixture(scope="module")
def own(cache: Path) -> native.Library:
    return native.load(HERE / "custom_environments.hpp", flags=QUICK)


def counter(folder: Path, stride: int) -> Path:
    (folder / "stride.hpp").write_text(f"inline constexpr std::int64_t stride = {stride};\n")
    header = folder / "counter.hpp"
    header.write_text(COUNTER)
    return header


def test_library_is_compiled_once(own: native.Library):
    """The second load finds the first one's library, by content: nothing is compiled, and the ids are the same."""
    again = native.load(HERE / "custom_environments.hpp", flags=QUICK)
    assert own.compiled
    assert not again.compiled
    assert (again.path, again.environment_ids) == (own.path, own.environment_ids)
    assert own.environment_ids == ("Pair-v0", "Pixel-v0", "Fragile-v0")
    assert set(own.environment_ids) <= set(native.environment_ids())
    with pytest.raises(ValueError, match=r"id is None; this library's environments: Pair-v0, Pixel-v0, Fragile-v0"):
        own.make(2)


def test_agents_and_float64(own: native.Library):
    """Rewards have an agent axis, observations are float64 to the last bit, the configuration is typed."""
    pool = own.make(3, id="Pair-v0", stride=[1, 2, 3], mirrored=[False, False, True])
    start, _ = pool.reset(seed=0)
    observation, reward, *_ = pool.step(np.array([[2, 0], [2, 2], [1, 0]]))
    assert (observation.dtype, observation.shape, reward.shape) == (np.float64, (3, 2, 2), (3, 2))
    assert np.array_equal(observation[:, :, 0] - start[:, :, 0], [[1, -1], [2, 2], [0, -3]])
    assert np.array_equal(observation[:, :, 1], np.ones((3, 2)))
    assert np.array_equal(reward, observation[:, :, 0] * [[1], [1], [-1]])


def test_arrays_in_a_state_are_saved(own: native.Library):
    """A member that is an array is a column with an axis more, and a restored pool resumes bit for bit."""
    first, second = own.make(4, id="Pair-v0"), own.make(4, id="Pair-v0", num_threads=2)
    first.reset(seed=3)
    actions = np.random.default_rng(0).integers(3, size=(12, 4, 2))
    for action in actions[:4]:
        first.step(action)
    state = first.save()
    assert {name: array.shape for name, array in state.items() if name.startswith("state.")} == {
        "state.place": (4, 2),
        "state.moves": (4, 2),
        "state.begun": (4,),
    }
    second.restore(state)
    for action in actions[4:]:
        for left, right in zip(first.step(action)[:4], second.step(action)[:4], strict=True):
            assert left.tobytes() == right.tobytes()


def test_pictures(own: native.Library):
    """uint8 observations keep type and shape on both APIs; an environment may have nothing to configure."""
    pool = own.make(5, id="Pixel-v0", num_threads=2)
    observation, _ = pool.reset(seed=1)
    assert (observation.dtype, observation.shape) == (np.uint8, (5, 4, 4))
    assert np.array_equal(observation.reshape(5, 16).sum(axis=1), np.full(5, 255))
    assert pool.config == {}
    pixels = np.zeros((6, 5, 4, 4), dtype=np.uint8)
    flags = [np.zeros((6, 5), dtype) for dtype in (np.float32, np.uint8, np.uint8, np.int32)]
    pool.begin_round(pixels, *flags)
    for t in range(6):
        pool.step_round(t, np.ones(5, np.int64))
    pool.end_round()
    assert np.array_equal(pixels.reshape(6, 5, 16).sum(axis=2), np.full((6, 5), 255))


def test_environment_that_throws_is_named(own: native.Library):
    """An exception from a library is Penstock's error, with the environment's number; the others were stepped."""
    pool = own.make(3, id="Fragile-v0")
    pool.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"environment 1 of Fragile-v0 failed: pushed too hard"):
        pool.step(np.array([[0.25], [0.75], [0.5]], np.float32))
    observation, _ = pool.reset(options={"reset_mask": np.array([False, True, False])})
    assert observation[:, 0].tolist() == [0.25, 0.0, 0.5]


def round_of(pool: native.Pool, steps: int = 1) -> tuple[np.ndarray, ...]:
    rows = (steps, pool.num_envs)
    flags = np.empty(rows, np.uint8), np.empty(rows, np.uint8), np.empty(rows, np.int32)
    return np.empty((*rows, *pool.single_observation_space.shape), np.float32), np.empty(rows, np.float32), *flags


def test_environment_that_throws_as_a_round_begins_is_named(own: native.Library):
    """Its half-made state is neither observed nor saved, and no step follows until it is reset."""
    pool = own.make(2, id="Fragile-v0", max_episode_steps=1, brittle=[False, True])
    pool.reset(seed=0)
    pool.step(np.array([[0.25], [0.25]], np.float32))
    with pytest.raises(RuntimeError, match=r"environment 1 of Fragile-v0 failed: broken"):
        pool.begin_round(*round_of(pool))
    for refused in (pool.save, lambda: pool.step_round(0, np.zeros((2, 1), np.float32))):
        with pytest.raises(RuntimeError, match="not every environment is ready"):
            refused()
    pool.reset(options={"reset_mask": np.array([False, True])})
    pool.begin_round(*round_of(pool))


def test_reset_that_fails_keeps_its_seed(own: native.Library):
    """The environment's generator has it by then, and the next reset continues that generator."""
    pool = own.make(2, id="Fragile-v0", brittle=[False, True])
    pool.reset()
    pool.step(np.array([[0.25], [0.25]], np.float32))
    with pytest.raises(RuntimeError, match=r"environment 1 of Fragile-v0 failed: broken"):
        pool.reset(seed=5)
    assert pool.np_random_seed == (5, 6)


def test_refused_asynchronous_reset_leaves_an_open_round_its_arrays(own: native.Library):
    """The round stays open, and its next step writes to them."""
    pool = own.make(2, id="Fragile-v0")
    pool.reset(seed=0)
    arrays = round_of(pool)
    kept = [weakref.ref(array) for array in arrays]
    pool.begin_round(*arrays)
    del arrays
    with pytest.raises(ValueError, match="named twice"):
        pool.async_reset(seed=0, env_ids=[0, 0])
    assert all(array() is not None for array in kept)


@pytest.mark.parametrize("name", ["CartPole-v1", pytest.param("Ant-v5", marks=pytest.mark.slow)])
def test_built_in_ids_are_refused(tmp_path: Path, name: str):
    """Those of MuJoCo's tasks, too, whether or not their library is loaded: one would take the other's place."""
    header = counter(tmp_path, stride=1)
    header.write_text(COUNTER.replace("Counter-v0", name))
    with pytest.raises(ValueError, match=f"'{name}', which is built in: give yours another id"):
        native.load(header, environments=["Counter"], flags=QUICK)


@pytest.mark.slow
def test_two_environments_of_one_name_are_refused(tmp_path: Path):
    """The second would take the first one's place, as happens when a struct is copied and its id is not changed."""
    (header := counter(tmp_path, stride=1)).write_text(
        COUNTER + COUNTER.replace("struct Counter", "struct Copied").replace('#include "stride.hpp"', "")
    )
    with pytest.raises(native.CompileError, match=r"PENSTOCK_LIBRARY: two environments have the same info.id"):
        native.load(header, environments=["Counter", "Copied"], flags=QUICK)


def test_text_of_a_lost_write_is_written_again(cache: Path):
    """A header's text is kept under its digest: a power cut may leave an empty file of that name."""
    with pytest.raises(ValueError, match="exports no environment"):
        native.load("// nothing\n")
    (kept,) = (cache / "sources").iterdir()
    kept.write_text("")
    with pytest.raises(ValueError, match="exports no environment"):
        native.load("// nothing\n")
    assert kept.read_text() == "// nothing\n"


@pytest.mark.slow
def test_library_of_a_lost_write_is_compiled_again(tmp_path: Path):
    """An empty file under a library's name, as a power cut may leave it, is not loaded."""
    header = counter(tmp_path, stride=7)
    first = native.load(header, environments=["Counter"], flags=QUICK)
    lost = first.path.with_suffix(".lost")
    first.path.rename(lost)
    first.path.touch()
    again = native.load(header, environments=["Counter"], flags=QUICK)
    assert again.compiled
    assert again.path.stat().st_size == lost.stat().st_size


@pytest.mark.slow
def test_changed_file_is_compiled_again_under_the_same_id(tmp_path: Path):
    """A change in a file that the header includes is noticed; the newest wins, a pool made before lives on.

    Changing it back finds the library that was compiled first.
    """
    header = counter(tmp_path, stride=1)
    options = {"environments": ["Counter"], "flags": QUICK}
    first = native.load(header, **options)
    old = first.make(2)
    old.reset(seed=0)

    counter(tmp_path, stride=10)
    second = native.load(header, **options)
    new = native.make("Counter-v0", 2)
    new.reset(seed=0)

    assert first.compiled
    assert second.compiled
    assert second.path != first.path
    with pytest.raises(RuntimeError, match=r"Counter-v0 is now that of .*, which was loaded after .*: load"):
        first.make(1)
    action = np.zeros(2, np.int64)
    assert [pool.step(action)[1].tolist() for pool in (old, new, old, new)] == [[1, 1], [10, 10], [2, 2], [20, 20]]

    counter(tmp_path, stride=1)
    third = native.load(header, **options)
    assert not third.compiled
    assert third.path == first.path
    back = third.make(1)
    back.reset(seed=0)
    assert back.step(action[:1])[1].tolist() == [1]


@pytest.mark.slow
def test_processes_that_load_at_once_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One of three processes compiles and the others wait for it; all can step, and nothing is left behind."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(folder))
    header = counter(tmp_path, stride=3)
    program = (
        "from penstock import native\n"
        f"library = native.load({str(header)!r}, environments=['Counter'], flags=['-O0'])\n"
        "pool = library.make(1)\n"
        "pool.reset(seed=0)\n"
        "print(library.compiled, pool.step([1])[1][0])\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = sorted(process.communicate()[0].strip() for process in running)
    assert said == ["False 3.0", "False 3.0", "True 3.0"]
    assert sorted(path.suffix for path in folder.iterdir() if path.suffix != ".lock") == [".json", ".so"]


def test_uncompilable_sources_are_refused_first(tmp_path: Path):
    """No file, no export, two exports, a text for a list: each says what to do next."""
    with pytest.raises(FileNotFoundError, match=r"there is no header '/absent.hpp'"):
        native.load("/absent.hpp")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.hpp").write_text(COUNTER)
    with pytest.raises(IsADirectoryError, match=r"mine' is a folder, expected a header; its headers: mine\.hpp"):
        native.load(tmp_path / "mine")
    with pytest.raises(ValueError, match="source is empty, expected the path or the text of a header"):
        native.load("")
    with pytest.raises(ValueError, match=r"counter.hpp exports no environment: write PENSTOCK_LIBRARY"):
        native.load(counter(tmp_path, stride=1))
    with pytest.raises(ValueError, match=r"has a PENSTOCK_LIBRARY line of its own.*leave out environments=\['Pair'\]"):
        native.load(HERE / "custom_environments.hpp", environments=["Pair"])
    with pytest.raises(ValueError, match=r"flags is '-O0', expected a list: flags=\['-O0'\]"):
        native.load(HERE / "custom_environments.hpp", flags="-O0")
    (quoted := tmp_path / 'my"own.hpp').write_text(COUNTER)
    with pytest.raises(ValueError, match=r"has '\"' in it, which no #include can name: rename it"):
        native.load(quoted)


def test_library_that_is_not_there_is_named(tmp_path: Path):
    """It is not the cache that can't be written."""
    with pytest.raises(FileNotFoundError, match=r"absent\.a"):
        native.load(counter(tmp_path, stride=1), environments=["Counter"], libraries=["/no/such/absent.a"], flags=QUICK)


def test_cache_that_can_not_be_written_is_named(monkeypatch: pytest.MonkeyPatch):
    """With the variable that names another, for there is no folder in a file."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", f"{__file__}/libraries")
    with pytest.raises(RuntimeError, match=r"can't be kept in .*/libraries \(Not a directory\); PENSTOCK_CACHE_DIR"):
        native.load(HERE / "custom_environments.hpp")
