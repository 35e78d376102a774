"""Implicit Q-learning (Kostrikov et al. 2022, arXiv 2110.06169): improves on the stored policy.

It never evaluates actions that were not taken. A value is an upper expectile of the critic over the stored actions
(equation 5 of the paper), the critic bootstraps from that value (equation 6), and the policy clones the stored actions,
weighted by the exponential of their advantage (equation 7). It learns from shards of any algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.behaviour_cloning import LikelihoodAlgorithm
from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.model.nn.layers import part
from penstock.tasks.model.nn.optimizers import cosine_annealed, init_adam, step_adam
from penstock.tasks.model.nn.returns import set_rows
from penstock.tasks.specs import ParameterGroup, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.setup.config.offline import IQLSettings
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory

_TWINS = ("first.", "second.")


@dataclass(frozen=True, slots=True)
class IQL(LikelihoodAlgorithm):
    """Twin critics, a value and a policy, for one environment's spaces."""

    settings: IQLSettings

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses in the order of the authors' code: critic and policy use the value that this minibatch updated."""
        return (
            Loss("value", "value", self._value_loss),
            Loss("policy", "policy", self._policy_loss),
            Loss("critic", "critic", self._critic_loss),
        )

    def init(self, seed: int) -> State:
        """Return orthogonal weights; the policy's last layer is small, so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        width = self._distribution.outputs
        policy = self._new_policy(generator)
        outputs, joined = (width, 0) if self._discrete else (1, width)
        critic = {
            f"{twin}{name}": value
            for twin in _TWINS
            for name, value in self._network.without_rule(self._network.init(outputs, 1.0, generator, joined)).items()
        }
        value = self._network.init(1, 1.0, generator)
        groups = {"value": value, "policy": policy, "critic": critic}
        params = {name: ParameterGroup(group) for name, group in groups.items()}
        return State(
            params=params,
            optimizer={name: init_adam(group.flat) for name, group in params.items()},
            targets={name: tensor.detach().clone() for name, tensor in params["critic"].items()},
        )

    def post(self, _params: Params, trajectory: Trajectory) -> Batch:
        """Return transitions, a row a step; `alive` is 0 where the episode terminated."""
        columns = trajectory.columns
        unmasked, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = self._network.packed(unmasked)
        following = observation.roll(-columns["reward"].shape[1], 0)
        final, _ = self.environment.split(trajectory.bootstrap_observation)
        set_rows(following, trajectory.bootstrap_rows, self._network.packed(final))
        return {
            "observation": observation,
            "action": columns["action"].flatten(0, 1),
            "reward": columns["reward"].flatten().float() * self.settings.reward_scale,
            "alive": (columns["terminated"].flatten() == 0).float(),
            "next_observation": following,
            **({} if allowed is None else {"allowed": allowed}),
        }

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Take a step of Adam, of the policy at a rate that may fall."""
        settings, moments = self.settings, state.optimizer[loss.group]
        minibatches = settings.anneal_minibatches if loss.group == "policy" else 0
        rate = cosine_annealed(settings.learning_rate, moments, minibatches)
        step_adam(state.params[loss.group].flat, gradient, moments, rate, settings.adam_epsilon)
        return state

    def after_minibatch(self, state: State) -> State:
        """Move the target critics a small share towards the critics."""
        for name, value in state.params["critic"].items():
            state.targets[name].lerp_(value.detach(), self.settings.target_rate)
        return state

    @property
    def _discrete(self) -> bool:
        """Return whether actions are one choice each, whose values a critic gives all at once."""
        return self.environment.action.kind == "discrete"

    def _value(self, params: Mapping[str, Tensor], observation: Tensor) -> Tensor:
        """Compute the values of observations, `[rows]`."""
        return self._network.step(params, None, observation)[0].squeeze(-1)

    def _values(self, critic: Mapping[str, Tensor], batch: LossInputs) -> Tensor:
        """Compute both critics' values of the stored actions, `[rows, 2]`."""
        observation, action = batch["observation"], batch["action"]
        found = []
        for layers in (part(critic, twin) for twin in _TWINS):
            if self._discrete:
                values, _ = self._network.step(layers, None, observation)
                found.append(values.gather(-1, action.unsqueeze(-1)))
            else:
                found.append(self._network.over_pairs(layers, observation, self._distribution.features(action)))
        return torch.cat(found, -1)

    def _advantage(self, params: Params, batch: LossInputs) -> Tensor:
        """Compute by how much the smaller target critic exceeds the value, `[rows]`."""
        with torch.no_grad():
            critic = self._values(batch.targets, batch).amin(-1)
        return critic - self._value(params["value"], batch["observation"])

    def _value_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return equation 5: squares, weighed by tau where the critic exceeds the value and by 1 - tau elsewhere."""
        advantage = self._advantage(params, batch)
        loss = torch.where(advantage > 0, self.settings.expectile, 1.0 - self.settings.expectile) * advantage.square()
        return batch.mean(loss), {"value_loss": loss.detach(), "advantage": advantage.detach()}

    def _policy_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return equation 7: negative log-likelihood of the stored actions, weighted by their exponential advantage."""
        with torch.no_grad():
            advantage = self._advantage(params, batch)
            weight = (self.settings.inverse_temperature * advantage).exp().clamp(max=self.settings.weight_limit)
        output, log_std = self._policy(params["policy"], batch["observation"])
        likelihood, _ = self._distribution.probability(output, log_std, batch["action"], batch.get("allowed"))
        outputs = {"negative_log_likelihood": -likelihood.detach(), "advantage_weight": weight}
        return -batch.mean(weight * likelihood), outputs

    def _critic_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return equation 6: squared error of both critics against the reward and the value of what followed."""
        with torch.no_grad():
            following = self._value(params["value"], batch["next_observation"])
            target = batch["reward"] + self.settings.discount * batch["alive"] * following
        square = (self._values(params["critic"], batch) - target.unsqueeze(-1)).square().sum(-1)
        return batch.mean(square), {"critic_loss": square.detach()}
