"""A run's environment may be a C++ header: its text belongs to the run, and every process compiles that text."""

from __future__ import annotations

import json
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from penstock import native
from penstock.flows.display.naming import named
from penstock.flows.settings.listing import flat_settings
from penstock.native.registry import entry_points
from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import ConfigError, ConsentError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.run import describe_run
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.header import loaded_header, with_header
from penstock.tasks.environments.torch.pool import make_torch_pool
from penstock.tasks.environments.typed_settings import with_typed_settings
from penstock.tasks.setup.config.consent import record_consent, require_consent
from penstock.tasks.setup.config.loading import build_config, with_overrides
from penstock.tasks.setup.config.replay import build_stored_config
from penstock.tasks.setup.planning.preflight import check_distribution
from penstock.tasks.setup.planning.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.tasks.setup.config.run import TrainConfig

HEADER = """
#include <penstock/library.hpp>

struct Walk {
  static constexpr penstock::Info info{.id = "test/Walk-v0", .max_episode_steps = 5};
  static constexpr auto action = penstock::Discrete<2>{};
  static constexpr auto observation = penstock::Box<1>::symmetric({100.0});

  struct Config {
    double length = 1.0;
    std::int64_t start = 0;
    PENSTOCK_FIELDS(Config, length, start)
  } config;

  struct State {
    double at;
    PENSTOCK_FIELDS(State, at)
  } state;

  void reset(penstock::Rng&) { state.at = double(config.start); }
  penstock::Step step(std::int64_t action) {
    state.at += config.length * (action == 1 ? 1.0 : -1.0);
    return {.reward = state.at};
  }
  void observe(std::span<float, 1> out) const { out[0] = float(state.at); }
};

PENSTOCK_LIBRARY(Walk)
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    """Compile once for the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path_factory.mktemp("libraries")))
        yield


@pytest.fixture
def header(tmp_path: Path) -> Path:
    file = tmp_path / "walk.hpp"
    file.write_text(HEADER)
    return file


def configured(header: Path | str, **environment: Any) -> Any:
    return build_config({"environment": {"header": str(header), "num_envs": 2, "envs_per_tile": 2, **environment}})


@pytest.mark.slow
def test_the_text_belongs_to_the_run(header: Path):
    """Once stored it needs no file; the identity has the text's digest and no path; another text is another run."""
    config = with_typed_settings(with_header(configured(header, settings={"length": 2, "start": 3})))
    assert (config.environment.id, config.environment.header_text) == ("test/Walk-v0", HEADER)
    assert canonical_json(config.environment.identity()["settings"]) == canonical_json({"length": 2.0, "start": 3})
    moved = header.rename(header.with_name("moved.hpp"))
    same = with_typed_settings(with_header(configured(moved, settings={"length": 2, "start": 3})))
    assert same.identity() == config.identity()
    assert config.environment.identity()["header"] == digest(HEADER.encode())
    moved.write_text(HEADER.replace("5}", "6}"))
    stored = build_stored_config(json.loads(json.dumps(describe_run(config)))["config"])
    assert stored.identity() == config.identity()
    assert "compiler" in describe_run(config)["made_with"]  # type: ignore[operator]
    assert with_header(stored) is stored
    pool = make_pool(stored, 2)
    assert pool.environment["max_episode_steps"] == 5
    assert pool.reset(seed=0)[0].tolist() == [[3.0], [3.0]]
    assert pool.step(np.array([1, 0]))[0].tolist() == [[5.0], [1.0]]
    flat = flat_settings(stored.model_dump(mode="json"))
    assert flat["environment.header_text"] == digest(HEADER.encode())


@pytest.mark.slow
def test_a_stored_header_compiles_although_a_new_one_is_refused(header: Path):
    """A run that an earlier version began goes on as it did: what is asked of headers grows, its text can't change."""
    old = HEADER.replace("double length = 1.0;", "double length = 1.0;\n    const char* problem() { return nullptr; }")
    old = old.replace("test/Walk-v0", "test/Stroll-v0").replace(
        "    return {.reward", "    if (action < 2) return {.reward"
    )
    header.write_text(old)
    with pytest.raises(ConfigError, match=r"Config: problem must be `const char\* problem\(\) const`"):
        with_header(configured(header))
    pool = make_pool(configured(header, header_text=old, id="test/Stroll-v0"), 2)
    pool.reset(seed=0)
    assert pool.step(np.array([1, 0]))[1].tolist() == [1.0, -1.0]


def test_runs_without_a_header_keep_their_identity():
    """The identity has no new key, and a `run.json` of earlier versions, without the settings, is read as before."""
    config = build_config({})
    assert set(config.environment.identity()) == {"id", "num_envs", "envs_per_tile", "max_episode_steps", "settings"}
    earlier = {name: value for name, value in config.environment.model_dump().items() if "header" not in name}
    assert build_config({"environment": earlier}).identity() == config.identity()


@pytest.mark.slow
def test_two_runs_in_one_process_keep_their_own_header(header: Path):
    """Both headers have the same id; each configuration's pools are made from its own text, in any order."""
    one = with_header(configured(header))
    header.write_text(HEADER.replace("length = 1.0", "length = 10.0"))
    ten = with_header(configured(header))
    for config, length in ((one, 1.0), (ten, 10.0), (one, 1.0)):
        pool = make_pool(config, 1)
        pool.reset(seed=0)
        assert pool.step(np.array([1]))[0].tolist() == [[length]]


def test_a_header_replaces_the_presets_environment():
    """`penstock train cartpole --environment.header walk.hpp` means the header's environment, unless an id is given."""
    base = {"environment": {"id": "CartPole-v1", "num_envs": 4}}
    assert with_overrides(base, {"environment": {"header": "x.hpp"}})["environment"] == {
        "num_envs": 4,
        "header": "x.hpp",
    }
    both = {"header": "x.hpp", "id": "test/Walk-v0"}
    assert with_overrides(base, {"environment": both})["environment"] == {"num_envs": 4, **both}


@pytest.mark.parametrize(
    ("environment", "start"),
    [
        ({"id": "ALE/Pong-v5"}, "ale-pong-v5-"),
        ({"header": "some/My Walk.hpp"}, "my-walk-"),
        ({"header": "walk.hpp", "id": "test/Walk-v0"}, "test-walk-v0-"),
        ({}, "cartpole-v1-"),
    ],
)
def test_generated_names_are_valid(environment: dict[str, Any], start: str):
    """A generated name begins with the id, or with the header's name, in the characters that a name may have."""
    name = named(build_config({"environment": environment})).name
    assert name is not None
    assert name.startswith(start)
    assert build_config({"name": name.lower()}).name == name.lower()


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        (None, {}, r"walk.hpp': cannot be read \(No such file or directory\), expected a C\+\+ header"),
        (b"\xff\xfe", {}, "cannot be read .it is not UTF-8."),
        (b"x" * (1 << 20) + b"y", {}, "found 1048577 bytes, expected at most 1048576"),
        (f'#include "grid.hpp"\n{HEADER}', {}, "walk.hpp includes 'grid.hpp', and a run stores one header"),
        (HEADER.replace("PENSTOCK_LIBRARY(Walk)", ""), {}, "walk.hpp exports no environment: write PENSTOCK_LIBRARY"),
        pytest.param(
            HEADER.replace("PENSTOCK_FIELDS(State, at)", ""),
            {},
            r"walk.hpp does not compile:\n  walk.hpp:18: state",
            marks=pytest.mark.slow,
        ),
        (HEADER, {"id": "test/Run-v0"}, "walk.hpp has no environment 'test/Run-v0'; choose .* from test/Walk-v0"),
        (HEADER, {"settings": {"lenght": 1.0}}, "no configuration field 'lenght'.*did you mean length"),
    ],
)
def test_wrong_headers_are_refused_before_anything_starts(tmp_path, text, environment, said):
    """The error names the file as the user knows it, and the reason; nothing is stored."""
    file = tmp_path / "walk.hpp"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    config = configured(file, **environment).model_copy(update={"store": str(tmp_path / "runs")})
    with pytest.raises(ConfigError, match=f"^environment.*{said}"):
        resolve(config, "refuse")
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("run.json"))


def test_a_header_in_a_store_needs_consent(tmp_path: Path, header: Path, monkeypatch: pytest.MonkeyPatch):
    """It is compiled only for a user who trained or trusted the run, and only as it was then."""
    monkeypatch.setenv("PENSTOCK_CONFIG_DIR", str(tmp_path / "config"))
    root = open_store(tmp_path / "runs")
    run = RunFolder(root, "planted")
    run.create(describe_run(with_header(configured(header))))
    with pytest.raises(ConsentError, match=r"holds the C\+\+ header '.*walk.hpp'.* not compiled.*planted --trust"):
        require_consent(run)
    assert record_consent(run)
    require_consent(run)
    description = run.load()
    description["config"]["environment"]["header_text"] += "// altered"
    altered = RunFolder(root, "altered")
    altered.create(description)
    with pytest.raises(ConsentError, match="altered --trust"):
        require_consent(altered)


def test_loading_it_by_hand_gives_the_same_environment(header: Path):
    """A pool of a run equals one of `native.load`."""
    pools = [make_pool(configured(header), 3, AutoresetMode.NEXT_STEP), native.load(f"{HEADER}\n").make(3)]
    for pool in pools:
        pool.reset(seed=[1, 2, 3])
    for step in range(12):
        left, right = (pool.step(np.array([step % 2, 1, 0])) for pool in pools)
        assert all(np.array_equal(one, two) for one, two in zip(left[:4], right[:4], strict=True))


def test_it_is_stepped_in_tensors_under_gpu_only(header: Path):
    """The policy accepts a header that this process has not loaded, and steps it as a native pool does."""
    config = configured(header)
    distribution = config.distribution.model_copy(update={"policy": "gpu_only"})
    config = with_header(config.model_copy(update={"distribution": distribution}))
    assert check_distribution(config).pools == "torch"
    with loaded_header(config.environment) as environment_id:
        pools = [make_torch_pool(environment_id, 3, length=2.0), native.make(environment_id, 3, length=2.0)]
    for pool in pools:
        pool.reset(seed=[1, 2, 3])
    for step in range(12):
        left, right = (pool.step(np.array([step % 2, 1, 0])) for pool in pools)
        assert all(np.array_equal(one, two) for one, two in zip(left[:4], right[:4], strict=True))


@pytest.mark.slow
def test_a_header_does_not_stay_in_place_of_a_package(header: Path, monkeypatch: pytest.MonkeyPatch):
    """A later run of the process that names the package's environment by its id has that one."""
    packaged = native.load(f"{HEADER}\n".replace("{.reward = state.at}", "{.reward = -7.0}"))
    (environment_id,) = packaged.environment_ids

    def reward(config: TrainConfig) -> float:
        with closing(make_pool(config, 1)) as pool:
            pool.reset(seed=0)
            return float(pool.step(np.array([1]))[1][0])

    by_id = build_config({"environment": {"id": environment_id, "max_episode_steps": None}})
    of_header = reward(configured(header))
    with pytest.raises(ConfigError, match=f"'{environment_id}': only a header has it"):
        make_pool(by_id, 1)
    package = SimpleNamespace(
        name="walk", value="walk:load", dist=None, load=lambda: lambda: native.load_library(packaged.path)
    )
    monkeypatch.setattr(entry_points, "entry_points", lambda group: [package])
    assert reward(by_id) == -7.0
    assert reward(configured(header)) == of_header == 1.0
    assert reward(by_id) == -7.0
