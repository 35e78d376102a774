"""One environment of several agents as PettingZoo's: a `ParallelEnv`, or an `AECEnv` in which agents act in turn.

It is a pool of one, for what steps such environments one by one. Stepping a pool of many costs far less for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

from penstock.native.registry.registry import make_native

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.spaces import Space
    from numpy.typing import NDArray


class TeamEnv(ParallelEnv[str, Any, Any]):
    """An environment with an agent axis, whose agents are called `agent_0` and so on; made by `make_pettingzoo`.

    An agent's observation is its part of the pool's, of the same dtype. Where choices are masked it is a dictionary of
    `observation` and `action_mask`, int8 `[n]`, as PettingZoo's games give it. An agent that its mask allows
    nothing has left: its episode is terminated.
    """

    def __init__(self, environment_id: str, max_episode_steps: int | None = None, **config: Any) -> None:
        self._pool = make_native(environment_id, 1, 1, max_episode_steps, AutoresetMode.DISABLED, **config)
        described = self._pool.environment
        if not described["agents"]:
            self._pool.close()
            raise ValueError(
                f"{environment_id} has one agent, and PettingZoo's interface is for several: expected an environment "
                f"with agents, such as simple_spread_v3; use native.SingleEnv for this one"
            )
        self.metadata = {"name": environment_id, "is_parallelizable": True, "render_modes": []}
        self.render_mode = None
        self.possible_agents = [f"agent_{index}" for index in range(described["agents"])]
        self.agents: list[str] = []
        action = described["action"]
        self._choices = int(action.get("n", 0))
        self._is_masked = "behind_mask" in described["observation"]
        whole = self._pool.single_observation_space
        low, high = self._rows(whole.low), self._rows(whole.high)  # type: ignore[attr-defined]
        self.observation_spaces: dict[str, Space[Any]] = {}
        self.action_spaces: dict[str, Space[Any]] = {}
        for index, agent in enumerate(self.possible_agents):
            seen: Space[Any] = Box(low[index], high[index], dtype=whole.dtype.type)  # type: ignore[union-attr]
            if self._is_masked:
                seen = Dict({"observation": seen, "action_mask": Box(0, 1, (self._choices,), np.int8)})
            self.observation_spaces[agent] = seen
            if self._choices:
                self.action_spaces[agent] = Discrete(self._choices)
            else:
                bounds = (np.asarray(action[name], dtype=np.float32)[index] for name in ("low", "high"))
                self.action_spaces[agent] = Box(*bounds, dtype=np.float32)

    def observation_space(self, agent: str) -> Space[Any]:
        """Return what an agent observes; the same object every time."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """Return an agent's actions; the same object every time."""
        return self.action_spaces[agent]

    def reset(
        self,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,  # noqa: ARG002  (PettingZoo's own test gives some)
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start an episode: each agent's observation, and infos, which are empty.

        Args:
            seed: Seed of a new generator, in [0, 2**64); None keeps the current one.
            options: They are ignored; the constructor takes the configuration.
        """
        observation, _ = self._pool.reset(seed=None if seed is None else [seed])
        self.agents = list(self.possible_agents)
        return self._observed(observation[0], self.agents), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Step all agents that are there.

        Raises:
            ValueError: The action of an agent is missing, or is none of its space.
            RuntimeError: No episode is running, or an agent that had left has returned, which PettingZoo has not.
        """
        if not self.agents:
            raise RuntimeError("no episode is running: call reset() before the first step() and after an episode's end")
        if missing := [agent for agent in self.agents if agent not in actions]:
            raise ValueError(f"no action of {', '.join(missing)}: expected one of each agent in env.agents")
        shape = (1, *(self._pool.single_action_space.shape or ()))
        given = np.zeros(shape, dtype=np.int64 if self._choices else np.float32)
        for index, agent in enumerate(self.possible_agents):
            if agent in self.agents:
                given[0, index] = self._checked(agent, actions[agent])
        observation, reward, terminated, truncated, _ = self._pool.step(given)
        acted, there = self.agents, self._there(observation[0])
        is_over, is_cut = bool(terminated[0]), bool(truncated[0])
        if not (is_over or is_cut) and (returned := [agent for agent in there if agent not in acted]):
            raise RuntimeError(
                f"{', '.join(returned)} had left and may act again, and PettingZoo's agents never return"
            )
        terminations = {agent: is_over or agent not in there for agent in acted}
        truncations = dict.fromkeys(acted, is_cut)
        rewards = {agent: float(reward[0][self.possible_agents.index(agent)]) for agent in acted}
        self.agents = [] if is_over or is_cut else [agent for agent in acted if agent in there]
        seen = self._observed(observation[0], acted)
        return seen, rewards, terminations, truncations, {agent: {} for agent in acted}

    def close(self) -> None:
        """Release the pool."""
        self._pool.close()

    def render(self) -> None:
        """Draw nothing: there is no picture of environments with agents."""

    def _checked(self, agent: str, action: Any) -> Any:
        space = self.action_spaces[agent]
        value = np.asarray(action)
        right = (
            value.shape == () and value.dtype.kind in "iu" and 0 <= int(value) < self._choices
            if self._choices
            else value.shape == space.shape and value.dtype.kind in "fiu"
        )
        if not right:
            raise ValueError(f"the action of {agent} is {action!r}, expected one of {space}")
        return value

    def _rows(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Return `[agents, ...]` without the mask."""
        if not self._is_masked:
            return observation
        shape = self._pool.environment["observation"]["behind_mask"]
        return observation[len(self.possible_agents) * self._choices :].reshape(shape)

    def _masks(self, observation: NDArray[Any]) -> NDArray[np.int8]:
        count = len(self.possible_agents)
        return observation[: count * self._choices].reshape(count, self._choices).astype(np.int8)

    def _there(self, observation: NDArray[Any]) -> list[str]:
        if not self._is_masked:
            return list(self.possible_agents)
        allowed = self._masks(observation)
        return [agent for index, agent in enumerate(self.possible_agents) if allowed[index].any()]

    def _observed(self, observation: NDArray[Any], agents: list[str]) -> dict[str, Any]:
        rows = self._rows(observation)
        masks = self._masks(observation) if self._is_masked else None
        seen: dict[str, Any] = {}
        for agent in agents:
            index = self.possible_agents.index(agent)
            own = rows[index].copy()
            seen[agent] = own if masks is None else {"observation": own, "action_mask": masks[index].copy()}
        return seen


@overload
def make_pettingzoo(
    environment_id: str, max_episode_steps: int | None = ..., *, by_turns: Literal[False] = ..., **config: Any
) -> TeamEnv: ...
@overload
def make_pettingzoo(
    environment_id: str, max_episode_steps: int | None = ..., *, by_turns: Literal[True], **config: Any
) -> AECEnv[str, Any, Any]: ...
def make_pettingzoo(
    environment_id: str, max_episode_steps: int | None = None, *, by_turns: bool = False, **config: Any
) -> TeamEnv | AECEnv[str, Any, Any]:
    """Make one environment of several agents with PettingZoo's interface.

    Args:
        environment_id: One that Penstock steps itself and that has agents, such as `simple_spread_v3`.
        max_episode_steps: Truncates episodes, as in `native.make`.
        by_turns: Whether to return an `AECEnv`, which takes the agents' actions one after the other, instead of a
            `ParallelEnv`. The environment steps with the last of them.
        config: Fields of its configuration.

    Raises:
        ValueError: No such environment or field, or it has one agent.
        ImportError: PettingZoo is not installed (`pip install 'penstock-rl[pettingzoo]'`).
    """
    env = TeamEnv(environment_id, max_episode_steps, **config)
    return parallel_to_aec(env) if by_turns else env
