"""IMPALA (Espeholt et al. 2018, arXiv 1802.01561) for actions of all kinds: actor-critic with V-trace.

Rows may come from older parameters than those that learn (`schedule.lag`). `post` compares the stored log-probabilities
with those of the parameters at the round's start, and V-trace corrects value targets by the ratio; the policy gradient
is weighted by the ratio too. Each row is learned from once, so there is no surrogate to clip.

One network has the policy's outputs and the value, as in the paper: a minibatch is one forward and one backward pass.
Its snapshot is larger by the row of weights that makes the value.

With a recurrent network, a training row is a sequence of steps with the memory before its first, which rows store.

Two choices differ from the paper. The optimizer is Adam: RMSProp needs an epsilon that fits the size of the gradients
(the paper searched for it, task by task), and its first steps are too long, because it does not correct its moments for
their start at zero. And a round may be several minibatches: their value targets are those of the round's start, and the
ratio that weights the policy gradient is recomputed in each minibatch, so a row counts less as the policy leaves it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Algorithm, Loss
from penstock.tasks.model.nn.distributions import ActionDistribution
from penstock.tasks.model.nn.network import Network, rowwise
from penstock.tasks.model.nn.normalizers import Normalizers
from penstock.tasks.model.nn.optimizers import EntropyBonus, annealed, clip_norm, count_round, init_adam, step_adam
from penstock.tasks.model.nn.returns import successor_values, vtrace
from penstock.tasks.setup.config.on_policy import IMPALASettings
from penstock.tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.tasks.model.algorithms.contract import Window
    from penstock.tasks.specs import Batch, LossInputs, LossResult, Params, Trajectory

_GROUP = "network"


@dataclass(frozen=True, slots=True)
class IMPALA(Algorithm):
    """Actor-critic that learns from slightly older policies, for one environment's spaces."""

    settings: IMPALASettings
    environment: EnvironmentSpec

    @property
    def rows(self) -> dict[str, Spec]:
        """`action` as the environment takes it, and its `log_probability` under the policy that acted.

        With a recurrent network also its `memory`, before the step.
        """
        memory = {"memory": Spec("float32", (self.settings.features,))} if self._network.recurrent else {}
        return {"action": self.environment.action.spec, "log_probability": Spec("float32"), **memory}

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise samples a choice (Gumbel-max), normal noise displaces a mean; zero noise is greedy."""
        return self._distribution.noise

    @property
    def losses(self) -> tuple[Loss, ...]:
        """One loss: policy gradient, value error and entropy share the network."""
        return (Loss("actor_critic", _GROUP, self._loss, independent=True),)

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The network, and the observation's normaliser."""
        return (_GROUP, *self._normalizers.actor_groups)

    def init(self, seed: int) -> State:
        """Return orthogonal weights; those of the policy's outputs are small, so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        outputs, numbers = self._distribution.outputs, self._distribution.numbers
        network = self._network.init(outputs + 1, 1.0, generator)
        self._network.near_uniform(network, outputs)
        if numbers:
            network["log_std"] = torch.full((numbers,), self.settings.initial_log_std)
        params = {_GROUP: ParameterGroup(network)}
        state = State(params=params, optimizer={_GROUP: init_adam(params[_GROUP].flat)})
        self._normalizers.init(state)
        self._entropy_bonus.init(state)
        return state

    def initial_carry(self, envs: int) -> Tensor | None:
        """Return an empty memory `[envs, features]`; None if the network has none."""
        return torch.zeros(envs, self.settings.features) if self._network.recurrent else None

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample an action from the policy; see `Algorithm.act`."""
        unmasked, allowed = self.environment.split(observation)
        inputs = self._normalizers.normalized(params, self._network.prepared(unmasked))
        output, memory = self._network.step(params[_GROUP], carry, inputs)
        action, log_probability = self._distribution.sample(
            output[:, :-1], params[_GROUP].get("log_std"), noise, allowed
        )
        rows = {"action": action, "log_probability": log_probability}
        return rows if carry is None else {**rows, "memory": carry}, memory

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Compute a round's values and log-probabilities in one batch, then V-trace per environment."""
        settings, columns = self.settings, trajectory.columns
        unmasked, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = self._network.prepared(unmasked)
        final = self._network.prepared(self.environment.split(trajectory.bootstrap_observation)[0])
        output, final_output = self._network.over_round(
            params[_GROUP],
            trajectory,
            self._normalizers.normalized(params, observation),
            self._normalizers.normalized(params, final),
            columns["memory"][0] if "memory" in columns else None,
        )
        mask = {} if allowed is None else {"allowed": allowed.unflatten(0, columns["reward"].shape)}
        log_probability, _ = self._distribution.probability(
            output[..., :-1], params[_GROUP].get("log_std"), columns["action"], mask.get("allowed")
        )
        value = output[..., -1]
        ends = columns["terminated"], columns["truncated"]
        reward, reward_statistics = self._normalizers.rewards(
            params, columns["reward"] * settings.reward_scale, *ends, settings.discount
        )
        targets, advantages = vtrace(
            reward,
            value,
            successor_values(value, trajectory.bootstrap_rows, final_output[:, -1]),
            *ends,
            log_probability - columns["log_probability"],
            settings.discount,
            trace_decay=settings.trace_decay,
            rho_limit=settings.rho_limit,
            c_limit=settings.c_limit,
        )
        learned = {
            "action": columns["action"],
            "log_probability": columns["log_probability"],
            "advantage": advantages,
            "value_target": targets,
            **mask,
            **reward_statistics,
        }
        return self._network.training_rows(trajectory, observation, learned, settings.sequence_steps)

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """Return the number of rows and the normalisers' sums; advantages keep their size, as in the paper."""
        rows = batch["advantage"]
        count = torch.full((), float(rows.numel()), dtype=torch.float64, device=rows.device)
        return {"count": count, **self._normalizers.sums(batch)}

    def plan(self, generator: torch.Generator, window: Window) -> Iterable[Tensor]:
        """Return every row once, in a fresh order."""
        return torch.randperm(window.rows, generator=generator).tensor_split(self.settings.minibatches)

    def _loss(self, params: Params, batch: LossInputs) -> LossResult:
        """Return the loss of section 4.2 of the paper: V-trace's policy gradient, value error, entropy bonus."""
        settings = self.settings
        inputs = self._normalizers.normalized(params, batch["observation"])
        output = self._network.over_rows(params[_GROUP], inputs, batch.get("memory"), batch.get("fresh"))
        log_probability, entropy = self._distribution.probability(
            output[..., :-1], params[_GROUP].get("log_std"), batch["action"], batch.get("allowed")
        )
        value_error = 0.5 * (output[..., -1] - batch["value_target"]).square()
        log_ratio = log_probability.detach() - batch["log_probability"]
        rho = log_ratio.exp().clamp(max=settings.rho_limit)
        objective = rho * batch["advantage"] * log_probability + self._entropy_bonus.weight(batch.targets) * entropy
        scalar = batch.mean(settings.value_weight * value_error - objective)
        with torch.no_grad():
            # The divergence of the acting policy from the learning one: (r - 1) - log r is never negative
            # (Schulman, "Approximating KL Divergence", 2020, http://joschu.net/blog/kl-approx.html).
            outputs = {
                "kl": log_ratio.exp() - 1.0 - log_ratio,
                "value_loss": value_error.detach(),
                "entropy": entropy.detach(),
            }
        return scalar, {name: rowwise(values) for name, values in outputs.items()}

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip the gradient by its norm, then take a step of Adam with the annealed learning rate."""
        settings, optimizer = self.settings, state.optimizer[loss.group]
        over_steps = settings.anneal_rounds * settings.minibatches
        rate = annealed(settings.learning_rate, settings.final_learning_rate, optimizer, over_steps)
        step_adam(state.params[loss.group].flat, clip_norm(gradient, settings.gradient_norm), optimizer, rate)
        return state

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Update the normalisers, and count the round if a schedule needs it; otherwise do nothing."""
        self._normalizers.update(state, stats)
        count_round(state)
        return state

    @property
    def _distribution(self) -> ActionDistribution:
        return ActionDistribution(self.environment.action)

    @property
    def _entropy_bonus(self) -> EntropyBonus:
        settings = self.settings
        return EntropyBonus(settings.entropy_weight, settings.final_entropy_weight, settings.anneal_rounds)

    @property
    def _network(self) -> Network:
        settings, environment = self.settings, self.environment
        return Network(
            settings.network,
            environment.policy_input,
            settings.features,
            settings.hidden,
            environment.facts,
            channels=settings.channels,
            cells=settings.cells,
        )

    @property
    def _normalizers(self) -> Normalizers:
        settings, numbers = self.settings, math.prod(self.environment.policy_input.shape)
        return Normalizers(
            observation=numbers if settings.normalize_observation else 0, reward=settings.normalize_reward
        )
