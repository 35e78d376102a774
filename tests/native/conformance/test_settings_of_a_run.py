"""`penstock check-env` with settings of a run: other libraries' environments with leaves, masks and wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from penstock import native
from penstock.flows.cli.check import check
from penstock.storage.errors import ConfigError

from ...support.environments.structured import ID, MASKED
from ...support.slow import slow_after

FORMATS, MASK = "rounds can hold observations and actions", "the mask allows a choice in every step"
STRUCTURED = ("--environment.structured", "true")


class Shown(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts MinAtar's grid into a Dict, with a mask among the infos that forbids one choice, or all of them."""

    def __init__(self, env: gymnasium.Env[Any, Any], allowed: int = 1) -> None:
        super().__init__(env)
        self.observation_space = Dict(grid=env.observation_space, steps=Box(0, 1000, (1,), np.float32))
        self.mask = np.full(env.action_space.n, allowed, np.int8)  # type: ignore[attr-defined]
        self.mask[-1] = 0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self._shown(self.env.reset(**options)[0]), {"action_mask": self.mask}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return self._shown(observation), reward, terminated, truncated, {"action_mask": self.mask}

    def _shown(self, grid: Any) -> dict[str, Any]:
        return {"grid": grid, "steps": np.array([self.steps], np.float32)}


SHOWN = f"{Shown.__module__}:{Shown.__name__}"
CASES = {
    "minigrid": ("minigrid/MiniGrid-Empty-5x5-v0", STRUCTURED, "direction (choice), image (image)", False),
    "minatar": (
        "MinAtar/Breakout-v1",
        (*STRUCTURED, "--wrappers", f"['{SHOWN}']", "--environment.action-mask", "info"),
        "grid (bits), steps (numbers)",
        True,
    ),
    "dm_control": ("dm_control/cartpole-balance", STRUCTURED, "position (numbers), velocity (numbers)", False),
    "envpool": ("envpool/Knapsack-v1", (*STRUCTURED, "--action-mask", "observation"), "action_mask (bits)", True),
    "pettingzoo": ("pettingzoo/classic/connect_four_v3", STRUCTURED, "action_mask (bits)", True),
}
"""By family: an id, settings, some of its leaves, and whether there is a mask."""


def checked(environment_id: str, *settings: str) -> dict[str, tuple[str, str]]:
    (report,) = check(environment_id, resources="", sanitize=False, settings=settings)
    return {one.name: (one.outcome, one.detail) for one in report.checks}


@pytest.mark.parametrize("family", slow_after(2, list(CASES)))
def test_another_librarys_environment_is_checked_as_a_run_steps_it(family: str):
    """With its leaves, its mask and its wrappers; the report names these settings."""
    environment_id, settings, leaves, is_masked = CASES[family]
    try:
        native.make(environment_id, 1, one_array=True).close()
    except (ImportError, ValueError) as error:
        pytest.skip(str(error))
    found = checked(environment_id, *settings)
    assert {outcome for outcome, _ in found.values()} <= {"pass", "skip"}, found
    assert leaves in found[FORMATS][1]
    assert "environment.structured = true" in found[FORMATS][1]
    assert (MASK in found) == is_masked
    plain = family == "pettingzoo"  # its masks need no setting
    assert ("environment.action_mask = " in found[FORMATS][1]) == (is_masked and not plain)


def test_a_mask_that_allows_nothing_is_found():
    """Also where a wrapper has it."""
    wrapper = f"[{{name = '{SHOWN}', settings = {{allowed = 0}}}}]"
    found = checked("MinAtar/Breakout-v1", "--environment.wrappers", wrapper, "--environment.action-mask", "info")
    outcome, detail = found[MASK]
    assert (outcome, "nothing is allowed in environment" in detail) == ("fail", True)


def test_settings_replace_what_is_found_out():
    """Structure is found out of Gymnasium's environments, unless it is given; arguments and wrappers are taken too."""
    outcome, detail = checked(ID, "--environment.structured", "false")[FORMATS]
    assert outcome == "pass"
    assert "camera" not in detail
    assert "environment.structured" not in detail
    wrapper = "[{name = 'gymnasium.wrappers.FilterObservation', settings = {filter_keys = ['camera', 'shift']}}]"
    found = checked(ID, "--environment.settings.side", "12", "--wrappers", wrapper)
    assert {outcome for outcome, _ in found.values()} == {"pass"}, found
    detail = found[FORMATS][1]
    assert "environment.settings.side = 12" in detail
    assert "environment.wrappers = (gymnasium.wrappers.FilterObservation,)" in detail
    assert ": camera (image), shift (choice);" in detail


@pytest.mark.parametrize(
    ("environment_id", "settings", "said"),
    [
        ("CartPole-v1", STRUCTURED, "structured = True: CartPole-v1 observes one array as it is"),
        ("CartPole-v1", ("--environment.settings.gravity", "4"), "gravity is given: leave it out"),
        ("CartPole-v1", ("--lag", "1"), "--lag 1: found a setting that check-env does not take, expected --env"),
        (ID, ("--environment.num-envs", "2"), "found a setting that check-env does not take"),
        (ID, ("--environment.action-mask", "somewhere"), "action_mask = 'somewhere': input should be 'info' or"),
        (ID, ("--environment.wrappers", "nowhere:Wrapper"), "'nowhere:Wrapper' can't be found"),
        (MASKED, ("--environment.settings.colour", "red"), "Gymnasium cannot make and reset"),
        (__file__, STRUCTURED, "is a header: leave it out"),
    ],
)
def test_settings_that_are_not_checked_are_refused(environment_id: str, settings: tuple[str, ...], said: str):
    """Each by name, before anything is checked."""
    with pytest.raises(ConfigError) as caught:
        checked(environment_id, *settings)
    assert said in str(caught.value)


def test_leaves_that_a_run_would_refuse_are_a_fault():
    """One array has no leaves, in a run and here."""
    outcome, detail = checked("gymnasium/CartPole-v1", *STRUCTURED)[FORMATS]
    assert outcome == "fail"
    assert "found one array of shape [4], expected Discrete, Tuple or Dict; leave it out" in detail


def test_a_mask_that_there_is_none_of_is_refused_once():
    """Every check would fail by it, each under a name of its own."""
    with pytest.raises(ConfigError, match="action_mask = 'info': gymnasium/CartPole-v1 gives no mask of allowed"):
        check("gymnasium/CartPole-v1", resources="", sanitize=False, settings=("--environment.action-mask", "info"))
