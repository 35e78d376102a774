"""IMPALA (Espeholt et al. 2018, arXiv 1802.01561) for discrete and continuous actions: actor-critic with V-trace.

Rows may come from older parameters than those that learn (`schedule.lag`). `post` compares the stored log-probabilities
with those of the parameters at the round's start, and V-trace corrects value targets by the ratio; the policy gradient
is weighed by the ratio too. Each row is learned from once, so there is no surrogate to clip.

One network has the policy's outputs and the value, as in the paper: a minibatch is one pass forwards and one backwards.
Its snapshot is larger by the row of weights that makes the value.

With a recurrent network, a training row is a sequence of steps with the memory before its first, which rows store.

Two choices differ from the paper. The optimizer is Adam: RMSProp needs an epsilon that fits the size of the gradients
(the paper searched for it, task by task), and its first steps are too long, because it does not correct its moments for
their start at zero. And a round may be several minibatches: their value targets are those of the round's start, the
weight of the policy gradient is of the minibatch, so that no row pushes for longer than the policy still resembles it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.algorithm import Loss
from tasks.distributions import choice_probability, choose, displace, vector_probability
from tasks.encoders import Network, NetworkName, rowwise
from tasks.normalizers import Normalizers
from tasks.optimizers import annealed, clip_norm, init_adam, step_adam
from tasks.returns import successor_values, vtrace
from tasks.specs import EnvironmentSpec, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tasks.algorithm import LossResult, Params, Window
    from tasks.specs import Batch, Trajectory

_GROUP = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class IMPALA:
    """Actor-critic that learns from slightly older policies, for one environment's spaces."""

    environment: EnvironmentSpec
    network: NetworkName = "mlp"
    features: int = 256
    """Numbers that convolutions give, or that a memory has."""
    sequence_steps: int = 16
    """Steps of a training row, if the network is recurrent."""
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    final_learning_rate: float = 0.0
    """Reached linearly after `anneal_rounds` rounds and kept from then on."""
    anneal_rounds: int = 0
    """0 keeps `learning_rate` for ever."""
    discount: float = 0.99
    trace_decay: float = 1.0
    rho_limit: float = 1.0
    c_limit: float = 1.0
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    minibatches: int = 4
    """Minibatches a round."""
    gradient_norm: float = 0.5
    reward_scale: float = 1.0
    """Rewards are multiplied by it before anything else; reported returns are not."""
    initial_log_std: float = 0.0
    """Of a continuous policy's state-independent normal distribution."""
    normalize_observation: bool = False
    """By the running mean and deviation of each number, limited to 10 deviations."""
    normalize_reward: bool = False
    """By the running deviation of `discounted_rewards`, after `reward_scale`, and limited to 10; reported returns are
    not."""

    @property
    def discrete(self) -> bool:
        """Whether actions are choices; otherwise they are vectors."""
        return self.environment.action.kind == "discrete"

    @property
    def _network(self) -> Network:
        environment = self.environment
        return Network(self.network, environment.seen, self.features, self.hidden, environment.facts)

    @property
    def _normalizers(self) -> Normalizers:
        numbers = math.prod(self.environment.seen.shape)
        return Normalizers(observation=numbers if self.normalize_observation else 0, reward=self.normalize_reward)

    @property
    def _row_steps(self) -> int:
        return self.sequence_steps if self._network.recurrent else 1

    @property
    def rows(self) -> dict[str, Spec]:
        """`action` as the environment takes it, `log_probability` under the behaviour policy.

        With a recurrent network also its `memory`, before the step.
        """
        memory = {"memory": Spec("float32", (self.features,))} if self._network.recurrent else {}
        return {"action": self.environment.action.spec, "log_probability": Spec("float32"), **memory}

    @property
    def noise(self) -> NoiseSpec:
        """Gumbel noise picks among choices (Gumbel-max), normal noise displaces a mean; zero noise means greedy."""
        action = self.environment.action
        return NoiseSpec("gumbel", (action.n,)) if self.discrete else NoiseSpec("normal", action.shape)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """One: policy gradient, value error and entropy share the network."""
        return (Loss("actor_critic", _GROUP, self._loss, alone=True),)

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The network, and what it sees observations through."""
        return (_GROUP, *self._normalizers.actor_groups)

    def init(self, seed: int) -> State:
        """Orthogonal weights; those of the policy's outputs are small so that it starts near uniform."""
        generator = torch.Generator().manual_seed(seed)
        outputs = self.environment.action.n if self.discrete else math.prod(self.environment.action.shape)
        network = self._network.init(outputs + 1, 1.0, generator)
        self._network.near_uniform(network, outputs)
        if not self.discrete:
            network["log_std"] = torch.full((outputs,), self.initial_log_std)
        params = {_GROUP: ParameterGroup(network)}
        state = State(params=params, optimizer={_GROUP: init_adam(params[_GROUP].flat)})
        self._normalizers.init(state)
        return state

    def initial_carry(self, envs: int) -> Tensor | None:
        """Empty memory `[envs, features]`, if the network is recurrent."""
        return torch.zeros(envs, self.features) if self._network.recurrent else None

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Sample from the policy; see `Algorithm.act`."""
        shown, allowed = self.environment.split(observation)
        seen = self._normalizers.seen(params, self._network.prepared(shown))
        whole, following = self._network.step(params[_GROUP], carry, seen)
        output = whole[:, :-1]
        if self.discrete:
            action, log_probability = choose(output, noise, allowed)
        else:
            vector, log_probability = displace(output, params[_GROUP]["log_std"], noise.flatten(1))
            action = vector.view(-1, *self.environment.action.shape)
        rows = {"action": action, "log_probability": log_probability}
        return rows if carry is None else {**rows, "memory": carry}, following

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Values and log-probabilities in one batch, V-trace per environment."""
        columns = trajectory.columns
        memory = columns["memory"][0] if "memory" in columns else None
        shown, allowed = self.environment.split(columns["observation"].flatten(0, 1))
        observation = self._network.prepared(shown)
        seen_last = self._network.prepared(self.environment.split(trajectory.bootstrap_observation)[0])
        seen = self._normalizers.seen(params, observation), self._normalizers.seen(params, seen_last)
        whole, final = self._network.over_round(params[_GROUP], trajectory, *seen, memory)
        mask = {} if allowed is None else {"allowed": allowed.unflatten(0, columns["reward"].shape)}
        log_probability, _ = self._distribution(params[_GROUP], whole[..., :-1], {**columns, **mask})
        value, following = whole[..., -1], final[:, -1]
        ends = columns["terminated"], columns["truncated"]
        reward, gathered = self._normalizers.rewards(
            params, columns["reward"] * self.reward_scale, *ends, self.discount
        )
        targets, advantages = vtrace(
            reward,
            value,
            successor_values(value, trajectory.bootstrap_rows, following),
            *ends,
            log_probability - columns["log_probability"],
            self.discount,
            trace_decay=self.trace_decay,
            rho_limit=self.rho_limit,
            c_limit=self.c_limit,
        )
        learned = {
            "action": columns["action"],
            "log_probability": columns["log_probability"],
            "advantage": advantages,
            "value_target": targets,
            **mask,
            **gathered,
        }
        return self._network.training_rows(trajectory, observation, learned, self.sequence_steps)

    def stats(self, batch: Batch) -> dict[str, Tensor]:
        """The number of rows, and what normalisers learn: advantages keep their size, as in the paper."""
        count = torch.tensor(float(batch["advantage"].numel()), dtype=torch.float64)
        return {"count": count.to(batch["advantage"].device), **self._normalizers.sums(batch)}

    def plan(self, generator: torch.Generator, window: Window) -> Iterable[Tensor]:
        """Every row once, in a fresh order."""
        return torch.randperm(window.rows, generator=generator).tensor_split(self.minibatches)

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Clip by the norm, then Adam."""
        optimizer = state.optimizer[loss.group]
        over_steps = self.anneal_rounds * self.minibatches
        rate = annealed(self.learning_rate, self.final_learning_rate, optimizer, over_steps)
        step_adam(state.params[loss.group].flat, clip_norm(gradient, self.gradient_norm), optimizer, rate)
        return state

    def after_minibatch(self, state: State) -> State:
        """Nothing to do: no targets, and the schedule counts optimizer steps."""
        return state

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Normalisers take the round in; without them, nothing to do."""
        self._normalizers.update(state, stats)
        return state

    def _distribution(self, params: Mapping[str, Tensor], output: Tensor, rows: Batch) -> tuple[Tensor, Tensor]:
        """Log-probability of each row's action, and the policy's entropy: `output` without its last axis, each."""
        if self.discrete:
            return choice_probability(output, rows["action"], rows.get("allowed"))
        return vector_probability(output, params["log_std"], rows["action"].flatten(output.dim() - 1))

    def _loss(
        self,
        params: Params,
        targets: Mapping[str, Tensor],  # noqa: ARG002
        rows: Batch,
        noise: Tensor | None,  # noqa: ARG002
        stats: Mapping[str, float],  # noqa: ARG002
        count: int,
    ) -> LossResult:
        """Section 4.2 of the paper: policy gradient with V-trace's advantage, value error, entropy bonus."""
        seen = self._normalizers.seen(params, rows["observation"])
        whole = self._network.over_rows(params[_GROUP], seen, rows.get("memory"), rows.get("fresh"))
        value = whole[..., -1]
        log_probability, entropy = self._distribution(params[_GROUP], whole[..., :-1], rows)
        value_loss = 0.5 * (value - rows["value_target"]).square()
        log_ratio = log_probability.detach() - rows["log_probability"]
        rho = log_ratio.exp().clamp(max=self.rho_limit)
        objective = rho * rows["advantage"] * log_probability + self.entropy_weight * entropy
        scalar = (self.value_weight * value_loss - objective).sum() / (count * self._row_steps)
        with torch.no_grad():
            # The divergence of the acting policy from the learning one: (r - 1) - log r is never negative
            # (Schulman, "Approximating KL Divergence", 2020, http://joschu.net/blog/kl-approx.html).
            outputs = {
                "kl": log_ratio.exp() - 1.0 - log_ratio,
                "value_loss": value_loss.detach(),
                "entropy": entropy.detach(),
            }
        return scalar, {name: rowwise(values) for name, values in outputs.items()}
