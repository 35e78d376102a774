"""One environment of several agents, stepped by all of them at once, whatever PettingZoo's interface it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MASK = "action_mask"
OWN = "pettingzoo/my_module:my_function"
"""An id of the user's own environment, for messages."""


class TeamStep(NamedTuple):
    """A step's results by the name of the agent; those that have left are in none of the dictionaries."""

    observation: Mapping[str, Any]
    reward: Mapping[str, float]
    infos: Mapping[str, Mapping[str, Any]]
    terminated: bool
    truncated: bool
    """Flags of the episode, which ends when no agent is left: it is truncated if a limit took one of the last."""
    going_on: Sequence[str]
    """Agents for whom something would follow: they had not left before the step, and it has not terminated them."""


class TeamEnv(ABC):
    """An environment with the agents `agents`, in the order of the agent axis."""

    agents: Sequence[str]

    @abstractmethod
    def reset(self, seed: int | None) -> TeamStep:
        """Start an episode; None goes on with the environment's own generator."""

    @abstractmethod
    def step(self, actions: Mapping[str, Any]) -> TeamStep:
        """Step with an action of every agent; what those do that have left, or are not to move, is not looked at."""

    @abstractmethod
    def acting(self) -> Sequence[str]:
        """Return the agents whose action the next step takes."""

    @abstractmethod
    def present(self) -> Sequence[str]:
        """Return the agents that have not left the episode."""

    @abstractmethod
    def close(self) -> None:
        """Close the environment."""


class ParallelTeam(TeamEnv):
    """An environment whose agents act at the same time: PettingZoo's ParallelEnv."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.agents = list(env.possible_agents)

    def reset(self, seed: int | None) -> TeamStep:
        """Start an episode."""
        observation, infos = self._env.reset(seed=seed)
        return TeamStep(observation, {}, infos, terminated=False, truncated=False, going_on=self.agents)

    def step(self, actions: Mapping[str, Any]) -> TeamStep:
        """Step with the actions of those that are there."""
        there = list(self._env.agents)
        observation, reward, terminations, truncations, infos = self._env.step({name: actions[name] for name in there})
        over = not self._env.agents or all(terminations[name] or truncations[name] for name in there)
        going_on = [name for name in there if not terminations[name]]
        truncated = over and any(truncations[name] for name in going_on)
        return TeamStep(observation, reward, infos, over and not truncated, truncated, going_on)

    def acting(self) -> Sequence[str]:
        """Return all that are there."""
        return list(self._env.agents)

    def present(self) -> Sequence[str]:
        """Return all that are there."""
        return list(self._env.agents)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class TurnTeam(TeamEnv):
    """An environment whose agents act one after the other, PettingZoo's AECEnv: a step is the turn of one of them."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.agents = list(env.possible_agents)

    def reset(self, seed: int | None) -> TeamStep:
        """Start an episode."""
        self._env.reset(seed=seed)
        return self._seen({}, over=False, truncated=False, going_on=self.agents)

    def step(self, actions: Mapping[str, Any]) -> TeamStep:
        """Step with the action of the agent whose turn it is."""
        env = self._env
        env.step(actions[env.agent_selection])
        reward = dict(env.rewards)
        going_on = [name for name in env.agents if not env.terminations[name]]
        truncated = any(env.truncations[name] for name in going_on)
        over = all(env.terminations[name] or env.truncations[name] for name in env.agents)
        while not over and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # an agent that has left takes its leave
            over = not env.agents
        return self._seen(reward, over=over, truncated=truncated, going_on=going_on)

    def acting(self) -> Sequence[str]:
        """Return the agent whose turn it is."""
        return [self._env.agent_selection] if self._env.agents else []

    def present(self) -> Sequence[str]:
        """Return those that have not left."""
        env = self._env
        return [name for name in env.agents if not (env.terminations[name] or env.truncations[name])]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _seen(self, reward: Mapping[str, float], *, over: bool, truncated: bool, going_on: Sequence[str]) -> TeamStep:
        env = self._env
        observation = {name: env.observe(name) for name in env.agents}
        return TeamStep(observation, reward, dict(env.infos), over and not truncated, over and truncated, going_on)
