"""One small run for each kind of policy: choices, vectors, both together, masks, agents, memories, images."""

from typing import Any

import pytest

from penstock.tasks.runtime.run_context import RunContext

from ...support.environments.seeing_teams import SEEING
from ...support.environments.structured_environments import registered_id
from ..conftest import MakeContext

KINDS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "normalised": {"environment": {"id": "Pendulum-v1"}, "algorithm": {"name": "ppo", "normalize_observation": True}},
    "clipped": {
        "environment": {"id": "Pendulum-v1"},
        "algorithm": {"name": "ppo", "actions": "clipped", "joint_gradient_norm": True, "initial_log_std": 1.0},
    },
    "squashed": {"environment": {"id": "Pendulum-v1"}, "algorithm": {"name": "ppo", "actions": "squashed"}},
    "recurrent": {"algorithm": {"name": "ppo", "network": "recurrent", "features": 8, "sequence_steps": 4}},
    "impala": {"algorithm": {"name": "impala"}},
    "dqn": {"algorithm": {"name": "dqn"}},
    "quantiles": {"algorithm": {"name": "qr_dqn", "noisy_scale": 0.5}},
    "lines": {"environment": {"id": "ConnectFour-v0"}, "algorithm": {"name": "ppo", "network": "lines", "features": 8}},
    "sac": {"environment": {"id": "Pendulum-v1"}, "algorithm": {"name": "sac"}},
    "sac with memories": {
        "environment": {"id": "Pendulum-v1"},
        "algorithm": {"name": "sac", "network": "recurrent", "features": 8, "sequence_steps": 4, "burn_in_steps": 2},
    },
    "structured": {"environment": {"id": registered_id("Hybrid")}, "algorithm": {"name": "ppo"}},
    "masked": {"environment": {"id": "ConnectFour-v0"}, "algorithm": {"name": "ppo"}},
    "agents": {"environment": {"id": "simple_spread_v3"}, "algorithm": {"name": "mappo"}},
    "seeing agents": {
        "environment": {"id": SEEING, "structured": True, "settings": {"masked": True}, "max_episode_steps": None},
        "algorithm": {"name": "mappo", "network": "leaves", "features": 4},
    },
    "leaving agents": {"environment": {"id": "Leaving-v0", "max_episode_steps": None}, "algorithm": {"name": "mappo"}},
    "remembering agents": {
        "environment": {"id": "simple_spread_v3"},
        "algorithm": {"name": "mappo", "network": "recurrent", "features": 8, "sequence_steps": 4},
    },
    "cloned memory": {
        "source": {"runs": ["small"]},
        "environment": {"id": "PositionOnlyCartPole-v0", "max_episode_steps": 5},
        "algorithm": {"name": "behaviour_cloning", "network": "recurrent", "features": 8, "burn_in_steps": 4},
    },
}


REPRESENTATIVE = ("ppo", "normalised", "recurrent", "masked", "agents")
"""Kinds that `make test` takes: the others combine their parts, or have another algorithm."""


def kind_case(name: str, *more: Any) -> Any:
    """Return a case for `parametrize`, marked as slow unless its kind is representative."""
    return pytest.param(name, *more, marks=() if name in REPRESENTATIVE else pytest.mark.slow)


@pytest.fixture(params=[kind_case(name) for name in KINDS])
def kind_context(request: pytest.FixtureRequest, make_context: MakeContext) -> RunContext:
    """A run of each kind."""
    if request.param == "leaving agents":
        request.getfixturevalue("leaving")  # compiles, in six CPU seconds
    return make_context(KINDS[request.param])
