"""Measures what a round costs on one core: acting, and updates by kernels, by torch, and by loops without Penstock.

Nothing is stored: a tile acts once, and each contender learns from those rows, in turn. Contenders of PPO on CartPole:

- penstock: the learner's own code, at each level of its kernels that this processor has (`torch` is the one without);
- autograd: the same operations as a plain torch loop, with torch's fused Adam: what a careful script does;
- by hand: forward and backward passes written out as torch operations, without autograd.

For other presets, Penstock's levels alone. Medians and ranges are over rounds of all contenders in turn.

    python -m benchmarks.learner
    python -m benchmarks.learner --preset cartpole-dqn --rounds 20
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import log_softmax, one_hot

from benchmarks.peers.measure import machine
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command, write_table
from penstock.native.kernel_level import LEVELS, use_level
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.learning.round_update import StageTally, learn_batches
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.setup.config.loading import build_config, load_preset, merge
from penstock.tasks.setup.planning.dry_run import training_rows, trial_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch, State

SETTINGS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "algorithm": {"hidden": [64, 64], "learning_rate": 3e-4, "entropy_weight": 0.0, "trace_decay": 0.95},
        "schedule": {"round_steps": 128},
    },
    "halfcheetah": {},
}
"""Changes to a preset: CartPole with the network and the settings that peers use."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["cartpole", "halfcheetah"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    torch.set_num_threads(1)
    rows, raw = [], {}
    for preset in args.preset:
        seconds, steps = measure(preset, args.rounds)
        raw[preset] = seconds
        acting, reference = median(seconds["acting"]), median(seconds["penstock, torch"])
        for name, taken in seconds.items():
            middle, spread = median(taken), f"{min(taken) * 1e3:.1f} to {max(taken) * 1e3:.1f}"
            whole = "" if name == "acting" else f"{steps / (acting + middle):,.0f}"
            faster = "" if name == "acting" else f"{reference / middle:.2f}"
            rows.append((preset, name, f"{middle * 1e3:.1f} ({spread})", faster, whole))
            print(*rows[-1], sep=" | ", flush=True)
    about = machine(("penstock-rl", "torch"))
    head = ("preset", "what", "ms a round (range)", "times torch's", "steps/s with acting")
    notes = [f"Machine: {json.dumps(about)}; {args.cores} core(s), one torch thread."]
    command = this_command()
    write_table(args.results, "learner", command, rows, {"machine": about, "seconds": raw}, head=head, notes=notes)


def measure(preset: str, rounds: int) -> tuple[dict[str, list[float]], int]:
    """Return the seconds of each contender's rounds, and a round's environment steps."""
    config = build_config(merge(load_preset(preset), SETTINGS.get(preset, {})))
    with trial_run(config) as (_, context):
        state = context.algorithm.init(1)
        buffers, actor = RoundBuffers(context, 0), TileActor(context, 0)
        actor.start()
        batch = training_rows(context, state, actor.act_round(0, state.params, buffers))
        batches = [batch] * config.environment.tiles
        contenders: dict[str, Callable[[], Any]] = {
            "acting": lambda: [actor.act_round(0, state.params, buffers) for _ in batches]
        }
        for level in LEVELS:
            contenders[f"penstock, {level}"] = learner(context, batches, level)
        if preset == "cartpole":
            contenders["autograd"] = Autograd(context, batch).learn
            contenders["by hand"] = ByHand(context, batch).learn
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for round_ in range(rounds + 2):
            for name, work in contenders.items():
                started = time.perf_counter()
                work()
                if round_ >= 2:
                    seconds[name].append(time.perf_counter() - started)
        actor.close()
    return seconds, config.schedule.round_steps * config.environment.num_envs


def learner(context: RunContext, batches: list[Batch], level: str) -> Callable[[], None]:
    state: State = context.algorithm.init(1)

    def learn() -> None:
        with use_level(level):
            learn_batches(context, state, 0, batches, StageTally(), LocalReduction(context.algorithm))

    return learn


class Loop:
    """PPO's minibatches over the rows of one round, two networks, a norm and an Adam for each."""

    def __init__(self, context: RunContext, batch: Batch) -> None:
        self.settings, self.batch = context.config.algorithm, batch
        state = context.algorithm.init(1)
        self.networks = [
            [tensor.detach().clone() for tensor in state.params[name].values()] for name in ("policy", "value")
        ]
        advantage = batch["advantage"].double()
        self.batch = {**batch, "advantage": ((advantage - advantage.mean()) / advantage.std()).float()}
        self.generator = torch.Generator().manual_seed(1)

    def learn(self) -> None:
        """Learn one round."""
        rows = len(self.batch["advantage"])
        for _ in range(self.settings.epochs):
            for index in torch.randperm(rows, generator=self.generator).tensor_split(self.settings.minibatches):
                self.step({name: column[index] for name, column in self.batch.items()})

    def step(self, rows: Batch) -> None:
        """Learn one minibatch."""
        raise NotImplementedError


class Autograd(Loop):
    """The losses as a script states them."""

    def __init__(self, context: RunContext, batch: Batch) -> None:
        super().__init__(context, batch)
        for network in self.networks:
            for tensor in network:
                tensor.requires_grad_()
        rate = self.settings.learning_rate
        self.optimizers = [torch.optim.Adam(network, rate, eps=1e-5, fused=True) for network in self.networks]

    def step(self, rows: Batch) -> None:
        """Take the gradient by autograd."""
        policy, value = (self.forward(network, rows["observation"]) for network in self.networks)
        log_probabilities = log_softmax(policy, -1)
        log_probability = log_probabilities.gather(-1, rows["action"].unsqueeze(-1)).squeeze(-1)
        ratio = (log_probability - rows["log_probability"]).exp()
        clip, advantage = self.settings.clip_range, rows["advantage"]
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        loss = -surrogate.mean() + 0.5 * (value.squeeze(-1) - rows["value_target"]).square().mean()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        for network, optimizer in zip(self.networks, self.optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(network, self.settings.gradient_norm)
            optimizer.step()

    def forward(self, network: list[torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        """Apply a network."""
        hidden = inputs
        for layer in range(0, len(network), 2):
            hidden = torch.nn.functional.linear(hidden, network[layer], network[layer + 1])
            hidden = hidden.tanh() if layer < len(network) - 2 else hidden
        return hidden


class ByHand(Loop):
    """Both passes written out, gradients into one vector a network, and a step of Adam on that vector."""

    def __init__(self, context: RunContext, batch: Batch) -> None:
        super().__init__(context, batch)
        self.flat = [torch.cat([tensor.reshape(-1) for tensor in network]) for network in self.networks]
        for index, network in enumerate(self.networks):
            pieces = self.flat[index].split([tensor.numel() for tensor in network])
            self.networks[index] = [piece.view(old.shape) for piece, old in zip(pieces, network, strict=True)]
        self.gradients = [torch.zeros_like(flat) for flat in self.flat]
        self.moments = [(torch.zeros_like(flat), torch.zeros_like(flat)) for flat in self.flat]
        self.steps = 0

    @torch.no_grad()
    def step(self, rows: Batch) -> None:
        """Take the gradient by the chain rule."""
        self.steps += 1
        count = len(rows["advantage"])
        hidden, logits = self.forward(0, rows["observation"])
        probability = torch.softmax(logits, -1)
        chosen = one_hot(rows["action"], logits.shape[-1]).float()
        taken = (probability * chosen).sum(-1)
        ratio, advantage = taken * (-rows["log_probability"]).exp(), rows["advantage"]
        clip = self.settings.clip_range
        inside = ratio * advantage <= ratio.clamp(1 - clip, 1 + clip) * advantage
        to_logits = (-(ratio * advantage * inside) / count).unsqueeze(-1) * (chosen - probability)
        self.backward(0, hidden, to_logits)
        hidden, value = self.forward(1, rows["observation"])
        self.backward(1, hidden, (value - rows["value_target"].unsqueeze(-1)) / count)

    def forward(self, number: int, inputs: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the inputs of every layer, and the outputs."""
        network, hidden = self.networks[number], [inputs]
        for layer in range(0, len(network) - 2, 2):
            hidden.append(torch.addmm(network[layer + 1], hidden[-1], network[layer].t()).tanh_())
        return hidden, torch.addmm(network[-1], hidden[-1], network[-2].t())

    def backward(self, number: int, hidden: list[torch.Tensor], to_outputs: torch.Tensor) -> None:
        """Go back through a network, clip its gradient, and take a step of Adam."""
        network, gradient = self.networks[number], self.gradients[number]
        pieces = gradient.split([tensor.numel() for tensor in network])
        for layer in range(len(hidden) - 1, -1, -1):
            torch.mm(to_outputs.t(), hidden[layer], out=pieces[2 * layer].view(network[2 * layer].shape))
            torch.sum(to_outputs, 0, out=pieces[2 * layer + 1])
            if layer:
                to_outputs = to_outputs.mm(network[2 * layer]).mul_(1.0 - hidden[layer].square())
        norm = float(gradient.norm())
        gradient.mul_(min(1.0, self.settings.gradient_norm / (norm + 1e-6)))
        mean, square = self.moments[number]
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = square.sqrt().div_(math.sqrt(1.0 - 0.999**self.steps)).add_(1e-5)
        self.flat[number].addcdiv_(mean, root, value=-self.settings.learning_rate / (1.0 - 0.9**self.steps))


if __name__ == "__main__":
    main()
