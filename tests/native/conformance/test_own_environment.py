"""`penstock check-env` for ids of Gymnasium: what a run would stumble over is found, and the settings are named."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete, Sequence

from penstock.flows.cli.check import check
from penstock.native.conformance.runner import check_id
from penstock.storage.errors import ConfigError

from ...support.environments.structured import ID, Explorer
from ...support.slow import slow_after

CALLS = itertools.count()


class Flawed(Explorer):
    """Has the fault of its name."""

    def __init__(self, fault: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self.fault = fault
        if fault == "varying":
            self.observation_space = Dict({"items": Sequence(Discrete(3))})

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        if self.fault == "varying":
            return {"items": (0, 1)}, {}
        if self.fault == "unseeded":
            self.np_random = np.random.default_rng(self.steps)
        observation, info = super()._observe()
        if self.fault == "global":
            observation["arm"]["position"][0] = next(CALLS)
        elif self.fault == "nan":
            observation["arm"]["position"][0] = np.nan
        elif self.fault == "bounds":
            observation["shift"] = 0
        elif self.fault == "forbidden":
            info["action_mask"][:] = self.steps < 3
            self.mask[:] = 1
        return observation, info


@pytest.fixture(params=slow_after(2, ["global", "forbidden", "nan", "bounds", "varying"]))
def flawed(request: pytest.FixtureRequest) -> Any:
    masked = "info" if request.param == "forbidden" else ""
    gymnasium.register("test/Flawed-v0", lambda: Flawed(request.param, masked=masked))
    yield request.param
    del gymnasium.registry["test/Flawed-v0"]


def outcomes(report: Any) -> dict[str, tuple[str, str]]:
    return {check.name: (check.outcome, check.detail) for check in report.checks}


@pytest.mark.parametrize(
    "masked", ["", *(pytest.param(place, marks=pytest.mark.slow) for place in ("info", "observation"))]
)
def test_a_sound_environment_passes(masked: str):
    """Leaves and settings are named; Gymnasium's checker, which ignores masks, is left out where there is one."""
    gymnasium.register("test/Sound-v0", lambda: Explorer(masked=masked))
    (report,) = check("test/Sound-v0", resources="", sanitize=False)
    del gymnasium.registry["test/Sound-v0"]
    assert report.passed
    found = outcomes(report)
    detail = found["rounds can hold observations and actions"][1]
    assert "camera (image)" in detail
    assert "environment.structured = true" in detail
    assert (f"environment.action_mask = '{masked}'" in detail) == bool(masked)
    assert {outcome for outcome, _ in found.values()} == {"pass"}
    assert ("the mask allows a choice in every step" in found) == bool(masked)
    assert ("gymnasium.utils.env_checker" in found) == (not masked)


class Unsorted(gymnasium.Env[Any, Any]):
    """Has keys in no alphabetical order, and structured actions."""

    observation_space = Dict(wheel=Discrete(3), arm=Discrete(2))
    action_space = Dict(turn=Discrete(3, start=1), brake=Discrete(2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self._observe(), 1.0, False, False, {}

    def _observe(self) -> dict[str, Any]:
        return {"wheel": self.np_random.integers(3), "arm": self.np_random.integers(2)}


def test_structured_actions_are_checked_too():
    """They are sampled and stored as rounds hold them; the order of a Dict's keys makes no difference."""
    gymnasium.register("test/Unsorted-v0", Unsorted)
    report = check_id("test/Unsorted-v0")
    del gymnasium.registry["test/Unsorted-v0"]
    assert report.passed
    assert "wheel (choice)" in outcomes(report)["rounds can hold observations and actions"][1]


def test_ignored_seeds_are_said():
    """Here they are no fault, since some environments have nothing random; Gymnasium's own checker complains."""
    gymnasium.register("test/Unseeded-v0", lambda: Flawed("unseeded"))
    report = check_id("test/Unseeded-v0")
    del gymnasium.registry["test/Unseeded-v0"]
    outcome, detail = outcomes(report)["other seeds, other episodes"]
    assert outcome == "skip"
    assert "seeds are ignored" in detail


FOUND = {
    "global": ("the same seed, the same episodes", "the observation of environment 0 differs at step 0"),
    "nan": ("every number is finite", "the observation of environment 0 is nan at step 0"),
    "bounds": ("spaces contain what is observed", "correct its type, shape or bounds"),
    "forbidden": ("the mask allows a choice in every step", "nothing is allowed in environment"),
    "varying": ("rounds can hold observations and actions", "its leaf 'items' is Sequence(Discrete(3)"),
}


def test_a_fault_is_found(flawed: str):
    """By the check that is about it, which says what to correct."""
    report = check_id("test/Flawed-v0")
    assert not report.passed
    name, said = FOUND[flawed]
    outcome, detail = outcomes(report)[name]
    assert outcome == "fail"
    assert said in detail


def test_what_can_not_be_made_is_a_mistake_of_the_user():
    """An id that nobody has, and one of this package with a typing error."""
    gymnasium.register("test/Broken-v0", lambda: 1 / 0)
    with pytest.raises(ConfigError, match="Gymnasium cannot make and reset test/Broken-v0: division by zero"):
        check("test/Broken-v0", resources="", sanitize=False)
    del gymnasium.registry["test/Broken-v0"]
    with pytest.raises(ConfigError, match="no environment is called 'CartPoll-v1'"):
        check("CartPoll-v1", resources="", sanitize=False)
    assert ID in gymnasium.registry
