"""An exported policy gives the run's actions in other runtimes: greedy ones, and sampled ones with the same noise."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from penstock.native import fill_noise
from penstock.storage.errors import ConfigError, PenstockError
from penstock.tasks.inference.export import export_policy
from penstock.tasks.inference.policy import Policy
from penstock.tasks.runtime.run_context import RunContext

from ..conftest import MakeContext
from .conftest import KINDS, kind_case
from .support import policy_of
from .test_policy import played

ROWS = 10_000


def observations(context: RunContext, policy: Policy) -> np.ndarray:
    """Return 10,000 observations around those that the environment gives; masks stay as they are."""
    seen = np.concatenate([observation for observation, _ in played(context, policy)])
    rows = np.resize(seen, (ROWS, *seen.shape[1:]))
    if policy.environment.unmasked_observation is None and rows.dtype == np.float32:
        rows = rows + np.random.default_rng(0).normal(0.0, 0.5, rows.shape).astype(np.float32)
    return rows


def expected(policy: Policy, rows: np.ndarray, noise: np.ndarray, memory: np.ndarray | None) -> list[np.ndarray]:
    with torch.inference_mode():
        carry = None if memory is None else torch.from_numpy(memory)
        columns, following = policy.algorithm.act(policy.params, carry, torch.from_numpy(rows), torch.from_numpy(noise))
    return [columns["action"].numpy()] + ([] if following is None else [following.numpy()])


def with_ties(
    policy: Policy, inputs: list[np.ndarray], found: list[np.ndarray], wanted: list[np.ndarray]
) -> list[np.ndarray]:
    """Return what is wanted, and of two choices that are tied to 1e-4, between which rounding decides, the one found.

    Convolutions add up in another order in another runtime.
    """
    rows, noise, *memory = inputs
    if not policy.environment.observation.leaves:
        return wanted
    places = np.nonzero(found[0] != wanted[0])
    nudged = noise.copy()
    nudged[(*places, found[0][places])] += 1e-4
    return [expected(policy, rows, nudged, memory[0] if memory else None)[0], *wanted[1:]]


def agree(found: list[np.ndarray], wanted: list[np.ndarray], spread: float) -> None:
    """Choices are equal; numbers to 1e-5, of their range where that is wider than 1."""
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        if theirs.dtype == np.int64:
            np.testing.assert_array_equal(mine, theirs)
        else:
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5 * spread)


@pytest.mark.parametrize(
    ("kind_context", "kind"),
    [
        *(kind_case(name, "onnx") for name in KINDS),
        *(pytest.param(name, "torch", marks=() if name == "ppo" else pytest.mark.slow) for name in KINDS),
    ],
    indirect=["kind_context"],
)
def test_it_acts_as_the_run(kind_context: RunContext, tmp_path: Path, kind: str):
    """Over 10,000 observations, greedy and with the noise of training, with a memory in and out."""
    policy = policy_of(kind_context)
    path = tmp_path / "policy.bin"
    about = export_policy(policy, path, kind)
    rows = observations(kind_context, policy)
    spec = policy.algorithm.noise
    drawn = np.empty((1, ROWS, *spec.shape), dtype=np.float32)
    fill_noise(spec.kind, 5, 2, np.arange(ROWS), 0, drawn)
    start = policy.algorithm.initial_carry(ROWS)
    memory = None if start is None else np.random.default_rng(1).uniform(-1, 1, start.shape).astype(np.float32)
    if kind == "onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        stored = onnx.load(path).metadata_props[0].value
    else:
        files = {"penstock.json": ""}
        program = torch.export.load(path, extra_files=files).module()
        names = [each["name"] for each in about["inputs"]]
        stored = files["penstock.json"]
    assert json.loads(stored) == about
    assert names == [each["name"] for each in about["inputs"]]
    action = policy.environment.action
    spread = max([1.0, *(high - low for low, high in zip(action.low, action.high, strict=True))])
    for noise in (np.zeros_like(drawn[0]), drawn[0]):
        inputs = [rows, noise] + ([] if memory is None else [memory])
        if kind == "onnx":
            found = session.run(None, dict(zip(names, inputs, strict=True)))
        else:
            with torch.inference_mode():
                found = [each.numpy() for each in program(*map(torch.from_numpy, inputs))]
        agree(found, with_ties(policy, inputs, found, expected(policy, rows, noise, memory)), spread)
        one = [each[:1] for each in inputs]  # the number of rows is free
        if kind == "onnx":
            assert session.run(None, dict(zip(names, one, strict=True)))[0].shape[0] == 1
    assert list(tmp_path.glob(".*")) == [], "nothing temporary stays"


@pytest.mark.slow
def test_weights_in_bfloat16_are_exported(make_context: MakeContext, tmp_path: Path):
    """Processors with such instructions have wide ones of reduced snapshots so; other runtimes can't multiply them."""
    settings = {"environment": {"id": "Pendulum-v1"}, "algorithm": {"name": "ppo", "hidden": [512, 512]}}
    context = make_context(settings)
    policy = policy_of(context)
    for group in policy.params.values():
        wide = {name: value.bfloat16() for name, value in group.items() if value.numel() >= 512 * 512}
        group.update(wide)  # type: ignore[attr-defined]
    rows = observations(context, policy)[:1000]
    noise = np.zeros((1000, *policy.algorithm.noise.shape), np.float32)
    for kind in ("onnx", "torch"):
        export_policy(policy, tmp_path / kind, kind)
    session = onnxruntime.InferenceSession(tmp_path / "onnx", providers=["CPUExecutionProvider"])
    program = torch.export.load(tmp_path / "torch").module()
    with torch.inference_mode():
        exported = program(torch.from_numpy(rows), torch.from_numpy(noise))[0].numpy()
    (wanted,) = expected(policy, rows, noise, None)
    for found in (session.run(None, {"observation": rows, "noise": noise})[0], exported):
        # A sum in another order may be rounded to the next bfloat16.
        np.testing.assert_allclose(found, wanted, atol=0.02 * np.abs(wanted).max())


def test_mistakes_are_refused(make_context: MakeContext, tmp_path: Path):
    """An unknown format, a folder, a folder that is not there."""
    policy = policy_of(make_context())
    with pytest.raises(ConfigError, match=r"the format 'tflite' is not known, expected 'onnx' or 'torch'"):
        export_policy(policy, tmp_path / "policy", "tflite")
    with pytest.raises(ConfigError, match="is a folder"):
        export_policy(policy, tmp_path, "torch")
    with pytest.raises(ConfigError, match=r"is in a folder that does not exist, '.*absent'"):
        export_policy(policy, tmp_path / "absent" / "policy", "torch")


@pytest.mark.parametrize("kind", ["onnx", "torch"])
def test_a_full_disk_is_one_message(make_context: MakeContext, tmp_path: Path, monkeypatch, kind: str):
    """Torch's own writer would end the process; what was there before stays."""
    path = tmp_path / "policy.bin"
    path.write_bytes(b"before")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(PenstockError, match=r"policy\.bin' can't be written: No space left"):
        export_policy(policy_of(make_context()), path, kind)
    assert [(file.name, file.read_bytes()) for file in tmp_path.glob("*policy*")] == [("policy.bin", b"before")]


def test_an_algorithm_that_branches_on_values_is_named(make_context: MakeContext, tmp_path: Path):
    """The error says what can't be traced, and nothing is written."""
    policy = policy_of(make_context())

    class Branching:
        noise = policy.algorithm.noise

        def initial_carry(self, envs: int) -> None:
            return None

        def act(self, params, carry, observation, noise):
            if observation.sum() > 3:
                observation = -observation
            return policy.algorithm.act(params, carry, observation, noise)

    policy.algorithm = Branching()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="can't trace `act` of Branching"):
        export_policy(policy, tmp_path / "policy.onnx", "onnx")
    assert list(tmp_path.glob("*policy*")) == []
