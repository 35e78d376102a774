"""`load_policy` finds the snapshot that was asked for, and names a user's mistakes."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from penstock.storage.errors import ConfigError, CorruptObjectError, RunNotFoundError
from penstock.tasks.inference.loading import load_newer, load_policy
from penstock.tasks.model.algorithms.contract import Algorithm
from penstock.tasks.specs import State

from ..conftest import MakeContext
from .support import commit


def test_newest_best_and_numbered_versions(make_context: MakeContext):
    """The best is the highest mean return among evaluations in commits and beside them; of equal ones the newest."""
    context = make_context()
    commit(context, 3.0, 9.0, None, 9.0, 1.0)
    address = f"{context.run.root.url}/{context.run.name}"
    assert load_policy(address).origin.version == 5
    assert load_policy(address, "best").origin.version == 4
    assert [load_policy(address, version).origin.stage for version in (1, 2, 3, 4, 5)] == [0, 1, 2, 3, 4]
    context.run.store.write(
        "evaluations/00000003-0-8.json", [b'{"version": 3, "mean_return": 12.5, "episodes": 8, "seeds": 0}']
    )
    assert load_policy(address, "best").origin.version == 3
    assert load_policy(address, np.int64(3)).origin.version == 3  # type: ignore[arg-type]


def test_what_cannot_be_loaded_is_said(make_context: MakeContext):
    """No commit, no such version, none evaluated, one removed, an altered one, another word."""
    context = make_context()
    address = f"{context.run.root.url}/{context.run.name}"
    with pytest.raises(ConfigError, match="run 'small' has committed nothing yet"):
        load_policy(address)
    refs = commit(context, None, None)
    for version in (7, -1):
        with pytest.raises(ConfigError, match=f"has no version {version}: its commits name versions up to 2"):
            load_policy(address, version)
    with pytest.raises(ConfigError, match=r"no evaluation.*penstock evaluate small"):
        load_policy(address, "best")
    with pytest.raises(ConfigError, match=r"version 'last', expected 'newest', 'best' or the number"):
        load_policy(address, "last")  # type: ignore[arg-type]
    context.run.store.delete([refs[0].name])
    with pytest.raises(ConfigError, match="version 1 of run 'small' was removed, by `penstock gc`"):
        load_policy(address, 1)
    data = bytearray(context.run.store.read(refs[1].name))
    data[-1] ^= 1
    context.run.store.write(refs[1].name, [bytes(data)])
    with pytest.raises(CorruptObjectError, match=refs[1].name):
        load_policy(address)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"device": "gpu"}, "device 'gpu': torch has none of that name here"),
        ({"device": "cuda:99"}, "device 'cuda:99': torch has none"),
        ({"device": None}, "device 'None': torch has none"),
        ({"seed": "a"}, "seed is 'a', expected a whole number from 0 to 9223372036854775807"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616"),
    ],
)
def test_a_device_or_seed_that_is_none_is_refused(make_context: MakeContext, given, said):
    """When the policy is loaded, and not where it first acts."""
    context = make_context()
    commit(context, None)
    with pytest.raises(ConfigError, match=said):
        load_policy("small", store=context.run.root.url, **given)


def test_another_run_of_the_name_is_not_followed(make_context: MakeContext):
    """A server of the first one goes on with it, and does not move to another environment between two requests."""
    context = make_context()
    commit(context, None)
    policy = load_policy("small", store=context.run.root.url)
    commit(context, None, first=1)
    newer = load_newer(policy)
    assert newer is not None
    assert newer.origin.version == 2
    shutil.rmtree(context.run.store.url)
    other = make_context({"environment": {"id": "Acrobot-v1"}})
    commit(other, None)
    with pytest.raises(ConfigError, match=r"another run has taken the name 'small' .* version 2 of the first one"):
        load_newer(newer)


def test_addresses(make_context: MakeContext, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A path, a name in a store, a relative path; a store alone and a run that is not there are refused."""
    context = make_context()
    commit(context, None)
    root = context.run.root.url
    assert load_policy("small", store=root).origin.run == "small"
    assert load_policy(f"{root}/small/").origin.run == "small"
    assert load_policy(Path(root) / "small").origin.run == load_policy("small", store=Path(root)).origin.run == "small"
    monkeypatch.chdir(tmp_path)
    assert load_policy("root/small").origin.run == "small"
    with pytest.raises(RunNotFoundError, match="absent"):
        load_policy("absent", store=root)
    with pytest.raises(ConfigError, match="names a store and no run in it"):
        load_policy("s3://bucket")
    with pytest.raises(ConfigError, match="give a name with a store"):
        load_policy(f"{root}/small", store=root)
    with pytest.raises(ConfigError, match="run is 3, expected a run's folder, its s3:// address or its name"):
        load_policy(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="store is 3, expected a folder or an address"):
        load_policy("small", store=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_parameters_that_are_not_finite_are_refused(
    make_context: MakeContext, number: float, monkeypatch: pytest.MonkeyPatch
):
    """An exported or served policy would act by chance, and say nothing."""
    context = make_context()
    algorithm = type(context.algorithm)
    init = algorithm.init

    def diverged(self: Algorithm, seed: int) -> State:
        state = init(self, seed)
        next(iter(state.params["policy"].values())).data.view(-1)[0] = number
        return state

    monkeypatch.setattr(algorithm, "init", diverged)
    commit(context, 3.0)
    said = r"version 1 of run 'small' has parameters that are not finite, 1 of \d+ in policy\..*earlier version"
    with pytest.raises(ConfigError, match=said):
        load_policy("small", store=context.run.root.url)
