"""Environments that are stepped several at once compute, bit for bit, what they compute one by one."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import native

ROOT = Path(__file__).parents[3]
GROUP = 32
"""Environments that are stepped at once; a pool of fewer steps each alone."""
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "CartPole-v1": [{}, {"gravity": 3.7, "length": 1.3, "tau": 0.05, "sutton_barto_reward": True}],
    "PositionOnlyCartPole-v0": [{}],
    "Acrobot-v1": [{}, {"nips": True, "link_mass_2": 0.7, "dt": 0.1}],
}
CASES = [(name, settings) for name, variants in SETTINGS.items() for settings in variants]
EXTREMES = [0.0, -0.0, 1e-300, 1e-9, 0.1259, 0.1261, 0.25, 0.8554, 0.8555, np.pi / 4, np.pi / 2, np.pi, 63.9, 64.1, 1e5]
"""Angles at the bounds of what the C library and the group treat in their ways."""


def pools(name: str, num_envs: int, **settings: Any) -> tuple[Any, list[Any]]:
    """Return a pool of all environments, and pools of the same ones that are too small for group."""
    whole = native.make(name, num_envs, num_threads=1, **settings)
    size = GROUP // 2
    parts = [native.make(name, size, num_threads=1, **settings) for _ in range(num_envs // size)]
    whole.reset(seed=list(range(num_envs)))
    for index, part in enumerate(parts):
        part.reset(seed=list(range(index * size, (index + 1) * size)))
    return whole, parts


def equal_states(whole: Any, parts: list[Any]) -> None:
    found, expected = whole.save(), [part.save() for part in parts]
    for key, column in found.items():
        joined = np.concatenate([part[key] for part in expected])
        assert column.tobytes() == joined.tobytes(), key


@pytest.mark.parametrize(("name", "settings"), CASES)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_steps_equal_those_of_single_environments(name: str, settings: dict[str, Any], mode: str):
    """Random actions over the ends of many episodes: results of each step, and the states after them."""
    whole, parts = pools(name, 2 * GROUP, autoreset_mode=mode, **settings)
    generator, ends = np.random.default_rng(3), 0
    for _ in range(600):
        actions = generator.integers(0, whole.single_action_space.n, 2 * GROUP)
        *found, _ = whole.step(actions)
        expected = [part.step(chosen)[:4] for part, chosen in zip(parts, np.split(actions, len(parts)), strict=True)]
        for index, column in enumerate(found):
            assert column.tobytes() == np.concatenate([part[index] for part in expected]).tobytes()
        ends += int(found[2].sum() + found[3].sum())
    equal_states(whole, parts)
    assert ends > 10


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1"])
def test_extreme_angles_equal_those_of_single_environments(name: str):
    """From states that no episode reaches: both signs of zero, tiny and large angles, the bounds of polynomials."""
    whole, parts = pools(name, GROUP)
    state = whole.save()
    angle = "state.angle" if name == "CartPole-v1" else "state.angle_2"
    values = np.resize(np.array([*EXTREMES, *(-value for value in EXTREMES)]), GROUP)
    state[angle] = values
    whole.restore(state)
    for part, chosen in zip(parts, np.split(np.arange(GROUP), len(parts)), strict=True):
        part.restore({key: column[chosen] for key, column in state.items()})
    actions = np.arange(GROUP) % 2
    *found, _ = whole.step(actions)
    expected = [part.step(chosen)[:4] for part, chosen in zip(parts, np.split(actions, len(parts)), strict=True)]
    for index, column in enumerate(found):
        assert column.tobytes() == np.concatenate([part[index] for part in expected]).tobytes()
    equal_states(whole, parts)


def test_environments_of_different_settings_go_one_by_one():
    """A setting that differs in one environment changes that one alone; equal again, all go on as before."""
    whole, parts = pools("CartPole-v1", GROUP)
    generator = np.random.default_rng(5)
    for gravity in (9.8, 5.0, 9.8):
        different = [gravity] + [9.8] * (GROUP - 1)
        whole.set_attr("gravity", different)
        for part, values in zip(parts, np.split(np.array(different), len(parts)), strict=True):
            part.set_attr("gravity", list(values))
        for _ in range(40):
            actions = generator.integers(0, 2, GROUP)
            whole.step(actions)
            for part, chosen in zip(parts, np.split(actions, len(parts)), strict=True):
                part.step(chosen)
        equal_states(whole, parts)


def first_failure(pool: Any) -> tuple[int, str]:
    """Return the step in which an environment fails, and what the error says without the environment's number."""
    for step in range(200):
        try:
            pool.step(np.full(pool.num_envs, 2))
        except RuntimeError as error:
            return step, str(error).partition("failed: ")[2]
    raise AssertionError("nothing failed")


def test_an_environment_that_diverges_fails_in_the_same_step():
    """Integration over far too long a time: the error and its step are those of the environments one by one."""
    whole, parts = pools("Acrobot-v1", GROUP, dt=50.0)
    step, said = first_failure(whole)
    assert said.startswith("the integration diverged")
    assert (step, said) == min((first_failure(part) for part in parts), key=lambda failed: failed[0])


@pytest.mark.parametrize("count", [2_000_000, pytest.param(400_000_000, marks=[pytest.mark.slow, pytest.mark.long])])
def test_functions_and_noise_are_those_of_the_c_library(tmp_path: Path, count: int):
    """Angles of every size, drawn at random, and noise, by each instruction set that this processor has."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "the package is built from C++; so is this test: install a compiler or set CXX"
    program, include = tmp_path / "group", ROOT / "native" / "include"
    flags = ["-std=c++20", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-I", str(include)]
    source = Path(__file__).parents[1] / "simd_test.cpp"
    built = subprocess.run([compiler, *flags, source, "-o", program], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program, str(count)], capture_output=True, text=True, check=False, timeout=1000)
    assert (ran.returncode, ran.stdout) == (0, "")
