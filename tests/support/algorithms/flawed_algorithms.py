"""PPO with a fault each, as people make them. Found by `penstock check-algorithm`, or it finds too little."""

import itertools
from dataclasses import dataclass, field, replace

import torch

from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.nn.layers import mlp
from penstock.tasks.model.nn.returns import generalized_advantages, successor_values
from penstock.tasks.specs import ParameterGroup

CALLS = itertools.count()


class ColdLearning(PPO):
    """Acts with a temperature that its loss does not know."""

    def act(self, params, carry, observation, noise):
        logits = mlp(params["policy"], observation) / 2
        action = (logits + noise).argmax(-1)
        chosen = torch.log_softmax(logits, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return {"action": action, "log_probability": chosen}, carry


@dataclass(frozen=True, kw_only=True)
class Counting(PPO):
    """Counts its calls on itself."""

    calls: dict[str, int] = field(default_factory=dict)

    def act(self, params, carry, observation, noise):
        self.calls["act"] = self.calls.get("act", 0) + 1
        return PPO.act(self, params, carry, observation, noise)


class CountingOutside(PPO):
    """Sees less with every call, by a counter of its module."""

    def act(self, params, carry, observation, noise):
        return PPO.act(self, params, carry, observation * 0.99 ** next(CALLS), noise)


class Drawing(PPO):
    """Draws its own noise."""

    def act(self, params, carry, observation, noise):
        return PPO.act(self, params, carry, observation, noise + torch.rand_like(noise))


class DrawingLoss(PPO):
    """Drops rows out at random."""

    def _value_loss(self, params, batch):
        error = mlp(params["value"], batch["observation"]).squeeze(-1) - batch["value_target"]
        return batch.mean(error.square() * (torch.rand_like(error) > 0.5)), {}


class Centred(PPO):
    """Centres observations over the rows of a batch."""

    def act(self, params, carry, observation, noise):
        return PPO.act(self, params, carry, observation - observation.mean(0), noise)


class Contrary(PPO):
    """Takes the unlikeliest action where nothing is drawn."""

    def act(self, params, carry, observation, noise):
        logits = mlp(params["policy"], observation)
        action = torch.where((noise == 0).all(-1), logits.argmin(-1), (logits + noise).argmax(-1))
        chosen = torch.log_softmax(logits, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return {"action": action, "log_probability": chosen}, carry


class OneSided(PPO):
    """Displaces every number of a vector upwards."""

    def act(self, params, carry, observation, noise):
        return PPO.act(self, params, carry, observation, noise.abs())


class NormalisedByTile(PPO):
    """Normalises advantages over the tile instead of the round."""

    def post(self, params, trajectory):
        batch = PPO.post(self, params, trajectory)
        advantage = batch["advantage"]
        return {**batch, "advantage": (advantage - advantage.mean()) / (advantage.std() + 1e-8)}


class MeansAsStats(PPO):
    """Gives means where sums are expected."""

    def stats(self, batch):
        return {**PPO.stats(self, batch), "advantage": batch["advantage"].mean() + 1}


class MeansOfMinibatches(PPO):
    """Gives the mean of a minibatch where a sum is expected."""

    summed_columns = ("advantage",)

    def minibatch_stats(self, rows):
        return {"offset": rows["advantage"].double().mean()}


class MeanLoss(PPO):
    """Takes the mean over the given rows."""

    def _value_loss(self, params, batch):
        error = mlp(params["value"], batch["observation"]).squeeze(-1) - batch["value_target"]
        return error.square().mean(), {}


class NormalisedByMinibatch(PPO):
    """Normalises advantages over the given rows, as many do."""

    def _policy_loss(self, params, batch):
        advantage = batch["advantage"]
        normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return PPO._policy_loss(self, params, replace(batch, rows={**batch.rows, "advantage": normal}))


def estimate(self, params, trajectory, terminated, truncated, following_factor=1.0):
    columns = trajectory.columns
    observation = columns["observation"].flatten(0, 1)
    value = mlp(params["value"], observation).view(columns["reward"].shape)
    following = following_factor * mlp(params["value"], trajectory.bootstrap_observation).squeeze(-1)
    successors = successor_values(value, trajectory.bootstrap_rows, following)
    advantage = generalized_advantages(columns["reward"], value, successors, terminated, truncated, 0.99, 0.95)
    batch = PPO.post(self, params, trajectory)
    return {**batch, "advantage": advantage.flatten(), "value_target": (advantage + value).flatten()}


class TruncationIsTheEnd(PPO):
    """Has one flag, `done`, as old environments had."""

    def post(self, params, trajectory):
        done = trajectory.columns["terminated"] | trajectory.columns["truncated"]
        return estimate(self, params, trajectory, done, done)


class BootstrapsNothing(PPO):
    """Sees zeros where an observation was that followed an episode or a round; with a memory, too."""

    def post(self, params, trajectory):
        return PPO.post(self, params, replace(trajectory, bootstrap_observation=0 * trajectory.bootstrap_observation))


class NothingFollowsTheRound(PPO):
    """Takes the value after the round's last row as nothing."""

    def post(self, params, trajectory):
        ended = (trajectory.columns["terminated"] | trajectory.columns["truncated"]).view(-1)
        factor = (ended[trajectory.bootstrap_rows] != 0).float()
        columns = trajectory.columns
        return estimate(self, params, trajectory, columns["terminated"], columns["truncated"], factor)


class ValueAfterTheEnd(PPO):
    """Bootstraps from what follows a termination."""

    def post(self, params, trajectory):
        truncated = trajectory.columns["terminated"] | trajectory.columns["truncated"]
        return estimate(self, params, trajectory, torch.zeros_like(truncated), truncated)


class OneLongEpisode(PPO):
    """Lets advantages run on over truncations."""

    def post(self, params, trajectory):
        columns = trajectory.columns
        return estimate(self, params, trajectory, columns["terminated"], torch.zeros_like(columns["truncated"]))


class WrongType(PPO):
    """Gives float64 where float32 is declared."""

    def act(self, params, carry, observation, noise):
        rows, carry = PPO.act(self, params, carry, observation, noise)
        return {**rows, "log_probability": rows["log_probability"].double()}, carry


class MissingColumn(PPO):
    """Declares a column that it does not give."""

    def act(self, params, carry, observation, noise):
        rows, carry = PPO.act(self, params, carry, observation, noise)
        return {"action": rows["action"]}, carry


class ReadsTheValue(PPO):
    """Acts with a group that no snapshot has."""

    def act(self, params, carry, observation, noise):
        mlp(params["value"], observation)
        return PPO.act(self, params, carry, observation, noise)


class UnseededInit(PPO):
    """Draws its first parameters from torch's own generator."""

    def init(self, seed):
        state = PPO.init(self, seed)
        return replace(state, params={**state.params, "value": ParameterGroup({"0.weight": torch.randn(1, 4)})})


class OneInit(PPO):
    """Has the same parameters for every seed."""

    def init(self, seed):
        return PPO.init(self, 0)


class StepsEverything(PPO):
    """Decays the weights of all groups with every loss."""

    def update(self, state, loss, gradient):
        for group in state.params.values():
            group.flat.mul_(0.99)
        return PPO.update(self, state, loss, gradient)


class ForgetsToStep(PPO):
    """Works out a step and does not take it."""

    def update(self, state, loss, gradient):
        return state


class StepsAfterwards(PPO):
    """Changes parameters where only targets may change."""

    def after_minibatch(self, state):
        state.params["policy"].flat.mul_(0.99)
        return state


class CountsMinibatches(PPO):
    """Has what it does after a minibatch depend on a number that no checkpoint has."""

    done = 0

    def after_minibatch(self, state):
        object.__setattr__(self, "done", self.done + 1)
        return PPO.after_minibatch(self, state)


class WritesIntoRows(PPO):
    """Scales rewards in place."""

    def post(self, params, trajectory):
        trajectory.columns["reward"].mul_(0.1)
        return PPO.post(self, params, trajectory)


class SharedOutput(PPO):
    """Gives a number of the minibatch as one of each row."""

    @property
    def losses(self):
        return (Loss("policy", "policy", self._shared),)

    def _shared(self, params, batch):
        scalar, outputs = PPO._policy_loss(self, params, batch)
        return scalar, {**outputs, "entropy": outputs["entropy"].mean().expand(len(outputs["entropy"]))}


class SeesThePath(PPO):
    """Weighs the value's error by whether autograd has computed the value."""

    @property
    def losses(self):
        policy, value = super().losses
        return policy, Loss("value", "value", self._seeing, independent=value.independent)

    def _seeing(self, params, batch):
        output = mlp(params["value"], batch["observation"])
        weight = 1.0 if output.grad_fn is None else 2.0
        error = output.squeeze(-1) - batch["value_target"]
        return weight * batch.mean(0.5 * error.square()), {}


class NotIndependent(PPO):
    """Weighs the value's error by the policy that the other loss trains."""

    @property
    def losses(self):
        policy, value = super().losses
        return policy, Loss("value", "value", self._weighed, independent=value.independent)

    def _weighed(self, params, batch):
        scalar, outputs = PPO._value_loss(self, params, batch)
        return scalar * (1.0 + params["policy"]["0.weight"].detach().square().sum()), outputs


class SeesAnotherAgent(NotIndependent):
    """Reads the policy, which it says another agent owns."""

    @property
    def losses(self):
        policy, _ = PPO.losses.fget(self)
        return replace(policy, agents=(0,)), Loss("value", "value", self._weighed, agents=(1,))
