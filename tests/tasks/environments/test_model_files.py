"""A run keeps to the MuJoCo model that it began with: its file, and the files that it includes."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from penstock.native.pool.mujoco_library import available, model_path
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.model_files import _digest, check_model, model_files, with_model_digest
from penstock.tasks.setup.config.loading import build_config

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.tasks.setup.config.run import TrainConfig

pytestmark = pytest.mark.skipif(not available(), reason="comes with penstock-rl[mujoco]")


def configured(**settings: Any) -> TrainConfig:
    table = {"id": "Hopper-v5", "num_envs": 2, "envs_per_tile": 2, "settings": settings}
    return build_config({"environment": table, "algorithm": {"name": "ppo"}})


@pytest.fixture(name="model")
def _model(tmp_path: Path) -> Path:
    """A hopper on a slippery floor, whose settings are in another file."""
    text = model_path("hopper.xml").read_text().replace("<worldbody>", '<include file="extra.xml"/><worldbody>', 1)
    (tmp_path / "extra.xml").write_text('<mujoco><option timestep="0.002"/></mujoco>')
    (tmp_path / "mine.xml").write_text(text)
    return tmp_path / "mine.xml"


def test_a_changed_model_is_refused(model: Path):
    """The digest is recorded when a run begins; another byte, in an included file too, ends what goes on."""
    config = with_model_digest(configured(xml_file=str(model)))
    assert config.environment.model_digest is not None
    assert config.environment.identity()["model_digest"] == config.environment.model_digest
    with closing(make_pool(config, 2)) as pool:
        assert pool.environment["observation"]["shape"] == (11,)
    assert with_model_digest(config) == config
    included = model.parent / "extra.xml"
    included.write_text(included.read_text() + "\n")
    for again in (with_model_digest, lambda found: make_pool(found, 2)):
        with pytest.raises(
            ConfigError, match=r"mine.xml': found files with the digest .* with which the run was created"
        ):
            again(config)


def test_a_run_without_a_model_stays_as_it_was():
    """Its settings and its identity have no digest; a name is one of Gymnasium's own files."""
    config = configured()
    assert with_model_digest(config) is config
    assert "model_digest" not in config.environment.model_dump(mode="json")
    assert "model_digest" not in config.environment.identity()
    own = with_model_digest(configured(xml_file="hopper.xml"))
    assert own.environment.settings == {"xml_file": "hopper.xml"}
    assert own.environment.model_digest is not None


def test_paths_are_absolute_in_a_run(model: Path, monkeypatch: pytest.MonkeyPatch):
    """Every process that acts finds the file, wherever it was started."""
    monkeypatch.chdir(model.parent)
    config = with_model_digest(configured(xml_file="./mine.xml"))
    assert config.environment.settings["xml_file"] == str(model.resolve())


def test_an_absent_model_is_one_line(tmp_path: Path):
    """Before anything starts."""
    with pytest.raises(ConfigError, match=r"environment.settings.xml_file: .* found no file .*absent.xml"):
        with_model_digest(configured(xml_file=str(tmp_path / "absent.xml")))


def test_files_that_a_model_names_are_found(tmp_path: Path):
    """In the folders that its compiler settings name, through models that it includes."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "main.xml").write_text(
        '<mujoco><compiler meshdir="parts"/><include file="more.xml"/><asset><mesh file="a.stl"/></asset></mujoco>'
    )
    (tmp_path / "more.xml").write_text("<mujoco><asset><mesh file='b.stl'/><mesh file='lost.stl'/></asset></mujoco>")
    for name in ("a", "b"):
        (tmp_path / "parts" / f"{name}.stl").write_bytes(b"solid")
    assert [file.name for file in model_files(tmp_path / "main.xml")] == ["main.xml", "more.xml", "a.stl", "b.stl"]


def test_files_are_found_wherever_their_folder_is_named(tmp_path: Path):
    """In a file that is included behind them, and of names whose folders the compiler leaves out."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "main.xml").write_text(
        '<mujoco><asset><mesh file="a.stl"/><mesh file="from/elsewhere/b.stl"/></asset>'
        '<include file="more.xml"/></mujoco>'
    )
    (tmp_path / "more.xml").write_text('<mujoco><compiler meshdir="parts" strippath="true"/></mujoco>')
    for name in ("a", "b"):
        (tmp_path / "parts" / f"{name}.stl").write_bytes(b"solid")
    main = tmp_path / "main.xml"
    assert [file.name for file in model_files(main)] == ["main.xml", "more.xml", "a.stl", "b.stl"]
    assert [file.name for file in model_files(main, in_order=True)] == ["main.xml", "more.xml"]


def test_a_run_of_an_earlier_version_keeps_its_digest(model: Path):
    """Its digest may lack files that are found now; a run that begins now has them."""
    config = with_model_digest(configured(xml_file=str(model)))
    (model.parent / "parts").mkdir()
    (model.parent / "parts" / "lost.stl").write_bytes(b"solid")
    text = model.read_text().replace("<worldbody>", "<!-- file='lost.stl' --><worldbody>", 1)
    model.write_text(text.replace('<include file="extra.xml"/>', ""))
    before = with_model_digest(configured(xml_file=str(model))).environment
    model.write_text(model.read_text().replace("</mujoco>", '<compiler meshdir="parts"/></mujoco>'))
    now = with_model_digest(configured(xml_file=str(model))).environment
    assert len({config.environment.model_digest, before.model_digest, now.model_digest}) == 3
    old = now.model_copy(update={"model_digest": _digest(now, in_order=True)})
    check_model(old)
    check_model(now)
    with pytest.raises(ConfigError, match="with which the run was created"):
        check_model(now.model_copy(update={"model_digest": before.model_digest}))
