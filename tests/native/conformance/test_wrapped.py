"""`penstock check-env` of environments that other libraries step: it finds what a run could not rely on."""

import itertools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from penstock.native.conformance.runner import check_id

_counter = itertools.count()


class Walk(gymnasium.Env):
    """A walk on a line, without a fault; each subclass has one."""

    observation_space = Box(-30.0, 30.0, (1,), np.float32)
    action_space = Discrete(2)
    place = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = float(self.np_random.uniform(-1.0, 1.0))
        return self.shown(), {}

    def step(self, action):
        self.place = min(max(self.place + (1.0 if action else -1.0), -20.0), 20.0)
        return self.shown(), self.place, False, False, {}

    def shown(self):
        return np.array([self.place], np.float32)


class Clock(Walk):
    """Depends on something outside of seeds and actions."""

    def shown(self):
        return np.array([self.place + next(_counter) * 1e-3], np.float32)


class Drift(Walk):
    """Keeps something that a seed does not reset."""

    kept = 0.0

    def step(self, action):
        self.kept = min(self.kept + 0.01, 9.0)
        return super().step(action)

    def shown(self):
        return np.array([self.place + self.kept], np.float32)


class Narrow(Walk):
    """Observes values beyond its bounds."""

    observation_space = Box(-0.5, 0.5, (1,), np.float32)


class Broken(Walk):
    """Gives a reward that is no number."""

    def step(self, action):
        return (self.shown(), float("nan"), *super().step(action)[2:])


class LostAtTheEnd(Walk):
    """Ends after a few steps, with an observation of its `last` that no round stores as a row."""

    last = float("nan")

    def step(self, action):
        observation, reward, *_ = super().step(action)
        ends = abs(self.place) > 3.0
        return (np.array([self.last], np.float32) if ends else observation), reward, ends, False, {}


class FarAtTheEnd(LostAtTheEnd):
    """The same beyond its bounds."""

    last = 50.0


class Deaf(Walk):
    """Ignores its seed."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=3)


pytestmark = pytest.mark.filterwarnings("ignore:.*WARN:UserWarning")  # Gymnasium's own checks of each step


@pytest.fixture
def outcomes():
    made = []

    def check(kind):
        made.append(f"checked/{kind.__name__}-v0")
        gymnasium.register(made[-1], entry_point=kind, max_episode_steps=50)
        return {check.name: (check.outcome, check.detail) for check in check_id(made[-1]).checks}

    yield check
    for name in made:
        del gymnasium.registry[name]


def test_an_environment_without_fault_passes(outcomes):
    """Every check applies to it."""
    assert {outcome for outcome, _ in outcomes(Walk).values()} == {"pass"}


@pytest.mark.parametrize(
    ("kind", "check", "said"),
    [
        (Clock, "the same seed, the same episodes", "depends on more than seeds and actions"),
        (Clock, "repeated actions restore it, bit for bit", "depends on more than these"),
        (Drift, "the same seed, the same episodes", "keeps something that its seed does not reset"),
        (Narrow, "spaces contain what is observed", "beyond its bounds [-0.5, 0.5]"),
        (Broken, "every number is finite", "the reward of environment 0 is nan"),
        (LostAtTheEnd, "every number is finite", "an observation after an episode's last step has nan"),
        (
            FarAtTheEnd,
            "spaces contain what is observed",
            "is 50 after an episode's last step, beyond its bounds",
        ),
    ],
)
def test_faults_are_found(outcomes, kind, check, said):
    """Each by the check that it concerns, with where."""
    outcome, detail = outcomes(kind)[check]
    assert outcome == "fail"
    assert said in detail


def test_ignored_seeds_are_said(outcomes):
    """They are no fault: some environments have nothing that is random."""
    outcome, detail = outcomes(Deaf)["other seeds, other episodes"]
    assert outcome == "skip"
    assert "seeds are ignored" in detail
