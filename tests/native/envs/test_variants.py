"""An environment under several ids, each of which is named, limited, reported and restored as one of its own."""

import numpy as np
import pytest

from penstock import native
from penstock.native import _core

from ...support.slow import slow_after

HEADER = """
#include <stdexcept>
#include <penstock/library.hpp>
#include <penstock/env/variants.hpp>

struct Twins {
  static constexpr penstock::Info info{.id = "TwinA-v0"};
  static constexpr penstock::Discrete<2> action{};
  static constexpr auto observation = penstock::Box<1>::symmetric({100.0});
  struct Config {
    std::int64_t length = 5;
    double gain = 1.0;
    PENSTOCK_FIELDS(Config, length, gain)
  } config;
  static constexpr const char* step_limit = "length";
  static auto variants() {
    return std::array{penstock::Variant<Config>{info, {}},
                      penstock::Variant<Config>{{.id = "TwinB-v0"}, {.length = 7, .gain = 2.0}}};
  }
  std::int64_t variant = 0;
  struct State { std::int64_t count; PENSTOCK_FIELDS(State, count) } state;
  [[nodiscard]] const char* state_problem() const { return state.count < 0 ? "counts down" : nullptr; }
  struct Report {
    double count = 0;
    std::array<bool, 3> odd{};
    std::array<double, 2> pair{};
    PENSTOCK_FIELDS(Report, count, odd, pair)
  } report;
  static constexpr std::size_t reset_reports = 2;
  void reset(penstock::Rng&) { state.count = 0, tell(); }
  penstock::Step step(std::int64_t choice) {
    if (choice == 1) throw std::runtime_error("the twin fell");
    ++state.count, tell();
    return {.reward = config.gain * double(variant + 1), .truncated = state.count >= config.length};
  }
  void observe(std::span<float, 1> out) const { out[0] = float(state.count); }
  void tell() {
    const bool odd = state.count % 2 != 0;
    report = {double(state.count), {odd, !odd, true}, {double(state.count), -1.0}};
  }
};
"""


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path_factory.mktemp("libraries")))
        library = native.load(HEADER, environments=["Twins"], flags=["-O0"])
        assert library.environment_ids == ("TwinA-v0", "TwinB-v0")
        yield


@pytest.mark.parametrize("env_id", slow_after(1, ["TwinB-v0", "TwinA-v0"]))
def test_an_error_names_the_id_that_was_asked_for(env_id: str):
    """In a step of all, of some, and of those that are received."""
    pool = native.make(env_id, 2)
    pool.reset(seed=0)
    with pytest.raises(RuntimeError, match=f"environment 1 of {env_id} failed: the twin fell"):
        pool.step(np.array([0, 1]))
    alone = native.make(env_id, 2, autoreset_mode="Disabled")
    alone.reset(seed=0)
    with pytest.raises(RuntimeError, match=f"environment 0 of {env_id} failed: the twin fell"):
        alone.step_rows(np.array([1]), [0])
    sent = native.make(env_id, 1)
    sent.async_reset(seed=0)
    sent.recv()
    sent.send(np.array([1]))
    with pytest.raises(RuntimeError, match=f"environment 0 of {env_id} failed: the twin fell"):
        sent.recv()


def test_the_number_of_an_id_is_no_setting():
    """It decides what the environment does, and neither the settings nor the attributes have it."""
    pool = native.make("TwinB-v0", 1)
    pool.reset(seed=0)
    assert pool.step(np.array([0]))[1].tolist() == [4.0]
    assert native.setting_types("TwinB-v0") == {"length": int, "gain": float}
    assert _core.describe("TwinB-v0")["config"] == {"length": 7, "gain": 2.0}
    with pytest.raises(ValueError, match="no configuration field 'variant'; its fields: length=7, gain=2"):
        native.make("TwinB-v0", 1, variant=0)
    with pytest.raises(AttributeError):
        pool.get_attr("variant")


def test_a_state_belongs_to_its_id():
    """One of another id is refused, and so is one that the environment finds wrong, saved or set."""
    pool, other = (native.make(env_id, 2, length=9, gain=1.0) for env_id in ("TwinA-v0", "TwinB-v0"))
    pool.reset(seed=0)
    saved = pool.save()
    with pytest.raises(ValueError, match="variant of environment 0 is 0 but this pool's is 1"):
        other.restore(saved)
    with pytest.raises(ValueError, match="state of environment 1 counts down"):
        pool.set_attr("count", [3, -1])
    assert pool.get_attr("count") == (0, 0)


def test_the_limit_of_an_environment_is_reported():
    """By its field's value: of several the longest, the pool's own if that is shorter, and as it is set."""
    assert native.make("TwinA-v0", 1).environment["max_episode_steps"] == 5
    assert native.make("TwinB-v0", 1, max_episode_steps=-1).environment["max_episode_steps"] == 7
    assert native.make("TwinB-v0", 2, length=[3, 30]).environment["max_episode_steps"] == 30
    assert native.make("TwinB-v0", 1, max_episode_steps=4).environment["max_episode_steps"] == 4
    pool = native.make("TwinB-v0", 1, length=2)
    pool.set_attr("length", 40)
    assert pool.environment["max_episode_steps"] == 40
    pool.reset(seed=0)
    truncated = [bool(pool.step(np.array([0]))[3][0]) for _ in range(40)]
    assert truncated == [False] * 39 + [True]
    assert pool.spec is not None
    assert pool.spec.max_episode_steps is None


def test_arrays_of_a_report_are_arrays_of_infos():
    """Numbers float64, and bool int8, as Gymnasium's masks; also in final infos."""
    pool = native.make("TwinA-v0", 2, length=[1, 5], autoreset_mode="SameStep")
    _, infos = pool.reset(seed=0)
    assert infos["odd"].dtype == np.int8
    assert infos["odd"].tolist() == [[0, 1, 1]] * 2
    assert "pair" not in infos
    *_, infos = pool.step(np.array([0, 0]))
    assert infos["odd"].tolist() == [[0, 1, 1], [1, 0, 1]]
    assert infos["pair"].tolist() == [[0.0, 0.0], [1.0, -1.0]]
    assert infos["_pair"].tolist() == [False, True]
    assert infos["final_info"]["odd"].tolist() == [[1, 0, 1], [0, 0, 0]]
    assert infos["final_info"]["pair"][0].tolist() == [1.0, -1.0]
    assert pool.get_attr("odd")[1].tolist() == [True, False, True]


def test_a_limit_that_is_no_field_is_refused():
    """By the compiler, with the contract's sentence."""
    wrong = HEADER.replace('step_limit = "length"', 'step_limit = "gain"')
    with pytest.raises(native.CompileError, match="step_limit: must be the name of a field of Config"):
        native.load(wrong, environments=["Twins"], flags=["-O0"])
