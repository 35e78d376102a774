"""A stored run chooses no code that this user's working directory holds, unless the user has agreed."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from penstock.storage.errors import ConsentError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.setup.config.consent import local_code, record_consent, require_consent


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in a folder that holds modules, with a configuration folder of the test's own."""
    monkeypatch.setenv("PENSTOCK_CONFIG_DIR", str(tmp_path / "config"))
    (folder := tmp_path / "work").mkdir()
    (folder / "planted_module.py").write_text("raise SystemExit('imported')")
    (folder / "planted_package").mkdir()
    (folder / "planted_package" / "__init__.py").write_text("raise SystemExit('imported')")
    (folder / "planted_space").mkdir()
    monkeypatch.chdir(folder)
    return folder


def run_of(tmp_path, name="PPO", env="CartPole-v1", seed=1):
    run = RunFolder(open_store(tmp_path / "runs"), f"run-{seed}")
    config = {"algorithm": {"name": name}, "environment": {"id": env}}
    if not run.exists():
        run.create({"config": config, "identity": {**config, "seed": seed}})
    return run


@pytest.mark.parametrize(
    "code",
    [
        "planted_module:X",
        "planted_package:X",
        "planted_package.inner:X",
        "planted_space.a:X",
        "gymnasium/planted_module:X",
    ],
)
@pytest.mark.parametrize("setting", ["name", "env"])
def test_code_in_the_working_directory_needs_consent(tmp_path, setting, code):
    """It is not imported to find that out. The error names it and the command that agrees; agreeing lasts."""
    run = run_of(tmp_path, **{setting: code})
    with pytest.raises(ConsentError, match=rf"{code}.*working directory|working directory.*{code}.*--trust"):
        require_consent(run)
    assert record_consent(run)
    require_consent(run)
    assert not record_consent(run)
    other = run_of(tmp_path, **{setting: code}, seed=2)
    with pytest.raises(ConsentError):
        require_consent(other)
    assert "planted_module" not in sys.modules


def test_a_module_in_any_folder_of_a_namespace_package_needs_consent(tmp_path, here, monkeypatch):
    """Python searches all of its folders, and an installed one comes first."""
    (tmp_path / "installed" / "spread_out").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    require_consent(run_of(tmp_path, name="spread_out.inner:X", seed=2))
    (here / "spread_out").mkdir()
    with pytest.raises(ConsentError, match=r"spread_out\.inner:X"):
        require_consent(run_of(tmp_path, name="spread_out.inner:X"))


def test_a_module_that_is_loaded_from_the_working_directory_needs_consent(tmp_path, here, monkeypatch):
    """An import gives the loaded one, although Python would find an installed one of that name now."""
    loaded = module_from_spec(spec_from_file_location("twice_there", here / "planted_module.py"))
    monkeypatch.setitem(sys.modules, "twice_there", loaded)
    (installed := tmp_path / "installed").mkdir()
    (installed / "twice_there.py").write_text("")
    monkeypatch.syspath_prepend(installed)
    with pytest.raises(ConsentError, match=r"twice_there:X' \(.*planted_module\.py\)"):
        require_consent(run_of(tmp_path, name="twice_there:X"))


@pytest.mark.parametrize("key", ["header", "header_text"])
def test_a_header_needs_consent(tmp_path, key):
    """A path alone is enough: it would be compiled as well as a text that the run holds."""
    run = RunFolder(open_store(tmp_path / "runs"), "run")
    config = {"algorithm": {"name": "ppo"}, "environment": {"id": "X-v0", key: "walk.hpp"}}
    run.create({"config": config, "identity": {"environment": {"id": "X-v0"}}})
    with pytest.raises(ConsentError, match=r"C\+\+ header .*It is not compiled.*--trust"):
        require_consent(run)
    assert record_consent(run)
    require_consent(run)


@pytest.mark.parametrize("named", ["pettingzoo/os:system", "pettingzoo/planted_module:X"])
def test_a_function_that_makes_environments_needs_consent(tmp_path, named):
    """Wherever its module is: it would be called with settings of the run, whatever it does."""
    run = run_of(tmp_path, env=named)
    with pytest.raises(ConsentError, match=rf"names '{named}' .*any function.*It is not called.*--trust"):
        require_consent(run)
    assert record_consent(run)
    require_consent(run)
    assert not record_consent(run)


def test_an_address_needs_consent(tmp_path):
    """A stored run chooses nobody to connect to; another address needs consent again."""
    folders = []
    for port in (7000, 7001):
        run = RunFolder(open_store(tmp_path / "runs"), f"run-{port}")
        config = {"algorithm": {"name": "ppo"}, "environment": {"id": "socket/X", "address": f"10.0.0.5:{port}"}}
        run.create({"config": config, "identity": {"environment": {"id": "socket/X"}}})
        folders.append(run)
    with pytest.raises(ConsentError, match=r"behind a socket at 10\.0\.0\.5:7000.*Nothing is connected to.*--trust"):
        require_consent(folders[0])
    assert record_consent(folders[0])
    require_consent(folders[0])
    with pytest.raises(ConsentError, match="7001"):
        require_consent(folders[1])


@pytest.mark.parametrize(
    "code", ["numpy:X", "gymnasium/numpy:X", "json:X", "penstock.tasks:X", "absent_module:X", "PPO"]
)
def test_installed_code_needs_no_consent(tmp_path, code):
    """Also built-in algorithms, and modules that do not exist: their import fails with an error of its own."""
    run = run_of(tmp_path, name=code)
    require_consent(run)
    assert not record_consent(run)
    assert not (tmp_path / "config").exists()


def test_a_folder_that_the_user_named_needs_no_consent(tmp_path, monkeypatch):
    """PYTHONPATH is the user's own word; the same module in the working directory is not what is imported."""
    (named := tmp_path / "named").mkdir()
    (named / "planted_module.py").write_text("")
    monkeypatch.syspath_prepend(named)
    assert local_code({"algorithm": {"name": "planted_module:X"}}) == []


def test_a_trusted_run_whose_settings_were_altered_is_refused(tmp_path):
    """Consent is to the code that was named then: the identity alone could be copied."""
    run = run_of(tmp_path, name="planted_module:X")
    record_consent(run)
    description = run.load()
    description["config"]["algorithm"]["name"] = "planted_package:X"
    altered = RunFolder(open_store(tmp_path / "runs"), "altered")
    altered.create(description)
    with pytest.raises(ConsentError, match="planted_package"):
        require_consent(altered)
