"""Implicit Q-learning (Kostrikov et al. 2022, arXiv 2110.06169): improves on the stored policy.

It never evaluates actions that were not taken. A value is an upper expectile of the critic over the stored actions
(equation 5 of the paper), the critic bootstraps from that value (equation 6), and the policy clones the stored actions,
weighted by the exponential of their advantage (equation 7). It learns from shards of any algorithm.

With a recurrent network a row is a sequence of steps, and policy, value and critics have a memory each, which is empty
`burn_in_steps` steps before it, as in behaviour cloning. Memories that shards may hold are not read.
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
from penstock.tasks.setup.config.offline import IQLSettings
from penstock.tasks.specs import ParameterGroup, State

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        """Return transitions, a row a step or, with a memory, a sequence; `alive` is 0 where an episode terminated."""
        columns = trajectory.columns
        unmasked, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = self._network.packed(unmasked)
        following = observation.roll(-columns["reward"].shape[1], 0)
        final, _ = self.environment.split(trajectory.bootstrap_observation)
        set_rows(following, trajectory.bootstrap_rows, self._network.packed(final))
        learned = {
            "action": columns["action"].flatten(0, 1),
            "reward": columns["reward"].flatten().float() * self.settings.reward_scale,
            "alive": (columns["terminated"].flatten() == 0).float(),
            "next_observation": following,
        }
        return self._rows(columns, observation, learned, allowed)

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

    def _following(self, value: Mapping[str, Tensor], batch: LossInputs) -> Tensor:
        """Compute the values of what followed the rows' steps, `[steps]`; with the memory after each of them."""
        memories = self._memories(value, batch) if self._network.recurrent else None
        return self._network.step(value, memories, self._flat(batch["next_observation"]))[0].squeeze(-1)

    def _memories(self, params: Mapping[str, Tensor], batch: LossInputs) -> Tensor:
        """Compute a network's memory after each of the rows' steps, `[steps, features]`."""
        burn_in_steps = self.settings.burn_in_steps
        return self._flat(self._network.replayed_memories(params, batch, batch["observation"], None, burn_in_steps))

    def _values(self, critic: Mapping[str, Tensor], batch: LossInputs) -> Tensor:
        """Compute both critics' values of the stored actions, `[steps, 2]`."""
        action, network = self._flat(batch["action"]), self._network
        found = []
        for layers in (part(critic, twin) for twin in _TWINS):
            if self._discrete:
                found.append(self._over(layers, batch).gather(-1, action.unsqueeze(-1)))
            elif network.recurrent:
                found.append(
                    network.over_encoded(layers, self._memories(layers, batch), self._distribution.features(action))
                )
            else:
                found.append(network.over_pairs(layers, batch["observation"], self._distribution.features(action)))
        return torch.cat(found, -1)

    def _advantage(self, params: Params, batch: LossInputs) -> Tensor:
        """Compute by how much the smaller target critic exceeds the value, `[steps]`."""
        with torch.no_grad():
            critic = self._values(batch.targets, batch).amin(-1)
        return critic - self._over(params["value"], batch).squeeze(-1)

    def _value_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return equation 5: squares, weighed by tau where the critic exceeds the value and by 1 - tau elsewhere."""
        advantage = self._advantage(params, batch)
        loss = torch.where(advantage > 0, self.settings.expectile, 1.0 - self.settings.expectile) * advantage.square()
        return self._result(batch, loss, {"value_loss": loss.detach(), "advantage": advantage.detach()})

    def _policy_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return equation 7: negative log-likelihood of the stored actions, weighted by their exponential advantage."""
        with torch.no_grad():
            advantage = self._advantage(params, batch)
            weight = (self.settings.inverse_temperature * advantage).exp().clamp(max=self.settings.weight_limit)
        policy, allowed = params["policy"], batch.get("allowed")
        likelihood, _ = self._distribution.probability(
            *self._spread(policy, self._over(policy, batch)),
            self._flat(batch["action"]),
            None if allowed is None else self._flat(allowed),
        )
        outputs = {"negative_log_likelihood": -likelihood.detach(), "advantage_weight": weight}
        mean, outputs = self._result(batch, weight * likelihood, outputs)
        return -mean, outputs

    def _critic_loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return equation 6: squared error of both critics against the reward and the value of what followed."""
        reward, alive = self._flat(batch["reward"]), self._flat(batch["alive"])
        with torch.no_grad():
            target = reward + self.settings.discount * alive * self._following(params["value"], batch)
        square = (self._values(params["critic"], batch) - target.unsqueeze(-1)).square().sum(-1)
        return self._result(batch, square, {"critic_loss": square.detach()})
