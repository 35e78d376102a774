"""Several environments of several agents as one vector environment, stepped one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from penstock.native.adapters.one_array import OneArray
from penstock.native.pool.arguments import folded_seed
from penstock.native.teams.actions import TeamActions
from penstock.native.teams.observations import TeamEncoder, TeamLeaves, TeamObservations
from penstock.native.teams.structured import TeamSpace
from penstock.native.teams.team_env import MASK, ParallelTeam, TeamEnv, TeamStep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.native.interface import Infos
    from penstock.native.teams.masks import AgentMask

_SEED_BITS = 31
"""Some games seed generators of 32 bits."""


class TeamVector(VectorEnv[Any, Any, Any]):
    """Environments of several agents; in `NextStep` and `SameStep` mode as Gymnasium's vectorisers reset them.

    An observation is `[agents, ...]`, or structured: one row of leaves, each of all agents. Where choices are masked,
    it is one row that begins with the masks of all agents: an agent that is not to move may only choose 0, and one that
    has left may choose nothing.

    Args:
        environment_id: For messages.
        make: Makes one environment.
        num_envs: How many.
        mode: The autoreset mode.
        limit: Steps after which an episode is truncated; None leaves that to the environment.
        masked: Whether to show masks even if spaces ask for none; agents may then leave before the episode's end.
        structured: Whether observations are leaves.

    Raises:
        ValueError: The mode is `Disabled`, or spaces that no pool can hold.
    """

    reset_options: frozenset[str] = frozenset()
    """The options that `reset` takes; a pool refuses others before it changes anything."""

    def __init__(
        self,
        environment_id: str,
        make: Callable[[], tuple[TeamEnv, Mapping[str, Any], Mapping[str, Any]]],
        num_envs: int,
        mode: AutoresetMode,
        *,
        limit: int | None,
        masked: bool,
        structured: bool = False,
    ) -> None:
        if mode == AutoresetMode.DISABLED:
            raise ValueError(f"{environment_id}: autoreset_mode is NextStep or SameStep, got Disabled")
        made = [make() for _ in range(num_envs)]
        self._envs = [env for env, _, _ in made]
        _, observations, actions = made[0]
        self._id, self._mode, self._limit = environment_id, mode, limit
        self.single_action_space: Any
        self.num_envs, self.metadata, self.render_mode = num_envs, {"autoreset_mode": mode}, None
        self.agents = list(self._envs[0].agents)
        self._observe = (TeamLeaves if structured else TeamObservations)(environment_id, observations)
        self.actions = TeamActions(environment_id, actions, num_envs)
        """The actions of all environments, checked and converted."""
        masks = self.actions.masks
        self._masks = bool(masks) and (masked or bool(self._observe.in_observation) or self.actions.need_masks)
        if masked and not masks:
            raise ValueError(
                f"{environment_id}: agents_leave = true is about agents with choices, and these have numbers; leave it "
                f"out, or choose settings with Discrete actions"
            )
        low, high, self._dtype = self._observe.low, self._observe.high, self._observe.dtype
        behind, leaves = None, self._observe.leaves
        if self._masks:
            self._dtype = np.dtype(np.float64 if self._dtype == np.float64 else np.float32)
            behind, each = self._observe.shape, (len(self.agents), self.actions.spec["n"])
            bits = each[0] * each[1]
            low = np.concatenate([np.zeros(bits), low.reshape(-1)]).astype(self._dtype)
            high = np.concatenate([np.ones(bits), high.reshape(-1)]).astype(self._dtype)
            if leaves:
                leaves = ({"name": MASK, "kind": "bits", "dtype": "int8", "shape": each, "sizes": ()}, *leaves)
        self.single_observation_space = OneArray(
            low, high, self._dtype, leaves, behind_mask=behind, encode=self._encoder(observations)
        )
        self.single_action_space, self.action_space = self.actions.single_space, self.actions.space
        self.own_action_space = self.actions.own_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._elapsed = np.zeros(num_envs, np.int64)
        self._over = np.zeros(num_envs, np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,  # noqa: ARG002  (there are none)
    ) -> tuple[NDArray[Any], Infos]:
        """Start episodes in all environments; seeds of more than 31 bits are folded."""
        seeds = seed if isinstance(seed, (list, tuple)) else [None] * self.num_envs
        rows = [self._begin(env, one) for env, one in enumerate(seeds)]
        self._over[:] = False
        return np.stack(rows), {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step with checked actions `[num_envs, agents, ...]`; rewards are float64 `[num_envs, agents]`."""
        reward = np.zeros((self.num_envs, len(self.agents)))
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        rows, final = [], np.full(self.num_envs, None, dtype=object)
        for index, env in enumerate(self._envs):
            if self._over[index]:  # in next-step mode
                rows.append(self._begin(index, None))
                continue
            acting = env.acting()
            step = env.step(self.actions.own(actions[index], acting))
            self._elapsed[index] += 1
            reward[index] = [step.reward.get(name, 0.0) for name in self.agents]
            is_truncated = step.truncated or (self._limit is not None and bool(self._elapsed[index] >= self._limit))
            terminated[index], truncated[index] = step.terminated, is_truncated
            is_over = step.terminated or is_truncated
            row = self._row(index, step, over=is_over)
            if is_over and self._mode == AutoresetMode.SAME_STEP:
                final[index], row = row, self._begin(index, None)
            rows.append(row)
        over = terminated | truncated
        self._over = over if self._mode == AutoresetMode.NEXT_STEP else self._over
        infos: Infos = {}
        if self._mode == AutoresetMode.SAME_STEP and over.any():
            infos = {"final_obs": final, "_final_obs": over.copy()}
        return np.stack(rows), reward, terminated, truncated, infos

    def close_extras(self, **_: Any) -> None:
        """Close all environments."""
        for env in self._envs:
            env.close()

    def _encoder(self, spaces: Mapping[str, Any]) -> TeamEncoder | None:
        """Return how arrays are made of observations alone; None if masks say more than these."""
        if not self._masks:
            return TeamEncoder(TeamSpace(spaces), self._observe, None, self._dtype)
        masks = dict(zip(self.agents, self.actions.masks, strict=True))
        shown = all(name in self._observe.in_observation or not mask.choices for name, mask in masks.items())
        if not shown or not isinstance(self._envs[0], ParallelTeam):
            return None
        return TeamEncoder(TeamSpace(spaces), self._observe, masks, self._dtype)

    def _begin(self, index: int, seed: int | None) -> NDArray[Any]:
        self._elapsed[index] = 0
        folded = None if seed is None else folded_seed(seed, _SEED_BITS)
        return self._row(index, self._envs[index].reset(folded), over=False)

    def _row(self, index: int, step: TeamStep, *, over: bool) -> NDArray[Any]:
        """Return what is observed, behind the masks if there are any."""
        env, shown = self._envs[index], self._observe(step.observation)
        if not self._masks:
            if not over and len(env.present()) < len(self.agents):
                left = sorted(set(self.agents) - set(env.present()))
                raise ValueError(
                    f"{', '.join(left)} left before the episode's end, and no mask can show that: set "
                    f"environment.settings.agents_leave = true (agents_leave=True in Python)"
                )
            return shown
        allowed = np.zeros((len(self.agents), self.actions.spec["n"]), self._dtype)
        present, acting = set(env.present()), set(env.acting())
        for row, (name, mask) in enumerate(zip(self.agents, self.actions.masks, strict=True)):
            if over:
                # Nothing is chosen any more. After a truncation the mask says whose returns would go on.
                allowed[row] = mask.free if step.terminated or name in step.going_on else 0
            elif name in acting and name in present:
                allowed[row] = self._mask_of(name, step, mask)
            elif name in present:
                allowed[row] = mask.waiting
        return np.concatenate([allowed.reshape(-1), shown.reshape(-1).astype(self._dtype)])

    def _mask_of(self, name: str, step: TeamStep, mask: AgentMask) -> NDArray[np.bool_]:
        source: Any = step.observation.get(name) if name in self._observe.in_observation else step.infos.get(name, {})
        given = source.get(MASK) if source is not None else None
        return mask.free if given is None else mask.given(name, given)
