"""Clones annealed placements of few blocks until they are repeated or not, and measures where the clones differ.

    python -m benchmarks.placing.imitation                                         # minutes, on generated blocks
    python -m benchmarks.placing.imitation --fits 1:400:512:5e-3 --placement guided

The blocks are those of `placing_pretraining.py`, recorded as there, and learned from by the algorithm of the preset
`floorplan-bc`, in this process. A fit is BLOCKS:UPDATES:ROWS:RATE: it learns from the first blocks, with minibatches of
so many rows, at this learning rate. The table has the mean negative log-likelihood (nats) and agreement on the stored
rows, and the costs of episodes by the likeliest cells: of the clone, of the untrained network's rule, and of the
recorded placements; the last column has the cost on the last blocks, which were not learned from.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.measure import machine
from benchmarks.placing.pretraining import penstock
from benchmarks.placing.pretraining_blocks import PROPOSALS, pretraining_block
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.open import open_store
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.model.algorithms.registry import make_algorithm
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.setup.config.loading import REPLAY_PRESETS_FOLDER, load_preset
from penstock.tasks.setup.config.replay import build_replay_config, build_stored_config
from penstock.tasks.specs import EnvironmentSpec, LossInputs

UNSEEN = 4  # blocks that are not learned from
BLOCK_ROWS = 4096  # whose gradient is taken at once
COSTS = ("wirelength", "density", "congestion")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--fits", nargs="+", default=["1:400:512:5e-3", *(f"8:200:128:{rate}" for rate in ("5e-3", "1e-3", "3e-4"))]
    )
    parser.add_argument("--placement", choices=PROPOSALS, default="published", help="the moves of the annealings")
    parser.add_argument("--moves", type=int, default=20_000, help="of each block's annealings")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("build/placing-pretraining"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    fits = [Fit(int(b), int(u), int(r), float(a)) for b, u, r, a in (text.split(":") for text in given.fits)]
    demos = Demonstrations(given, max(fit.blocks for fit in fits) + UNSEEN)
    print(
        f"# Imitating annealed placements\n\n`{' '.join(['python -m benchmarks.placing.imitation', *sys.argv[1:]])}`\n"
    )
    about = machine(["torch"])
    print(f"{about['processor']}, {about['cores']} cores, torch {about['versions']['torch']}; one thread.\n")
    print(
        f"| blocks | updates | rows | rate | CPU s | policy | nats | agreement | {' | '.join(COSTS)} | cost | unseen |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for fit in fits:
        for line in measured(demos, fit, given.seed):
            print(line, flush=True)


@dataclass(frozen=True, slots=True)
class Fit:
    """A part of the blocks, and how long to learn from it."""

    blocks: int
    updates: int
    rows: int
    rate: float


class Demonstrations:
    """Recorded placements of some blocks, in memory."""

    def __init__(self, given: argparse.Namespace, count: int) -> None:
        (given.keep / "blocks").mkdir(parents=True, exist_ok=True)
        folders = [pretraining_block(given.keep / "blocks", i, given.moves) for i in range(count)]
        name = f"imitated-{given.placement}-{count}"
        if not (given.keep / "runs" / name / "latest.json").exists():
            penstock(given, "floorplan", "record", name, *map(str, folders), "--placement", f"{given.placement}.plc")
        self.run, run = name, RunFolder(open_store(given.keep / "runs"), name)
        self.config = build_stored_config(run.load("config")["config"])
        with closing(make_pool(self.config, 1)) as pool:
            self.environment = EnvironmentSpec.from_pool(self.config.environment.id, dict(pool.environment), 2)
        shards = [decode_shard(run.store.view(ref.name), None, ref.name, ref.digest) for ref in run.log.shard_refs()]
        self.rows = [self._rows(shard.columns) for shard in shards]

    def _rows(self, columns: Any) -> dict[str, Tensor]:
        observation = torch.from_numpy(columns["observation"].copy()).flatten(0, -2)
        unmasked, allowed = self.environment.split(observation)
        assert allowed is not None
        return {
            "observation": unmasked,
            "allowed": allowed,
            "action": torch.from_numpy(columns["action"].copy()).flatten(),
        }

    def episodes(self, learned: int, choose: Any) -> str:
        """Return the mean costs of one episode on each of the first blocks, and the mean cost on the last ones."""
        blocks = [*range(learned), *range(len(self.rows) - UNSEEN, len(self.rows))]
        with closing(make_pool(self.config, len(self.rows))) as pool:
            observation, _ = pool.reset(seed=0)
            found: dict[int, list[float]] = {}
            for step in range(max(len(self.rows[block]["action"]) for block in blocks)):
                seen = torch.from_numpy(observation)
                _, allowed = self.environment.split(seen)
                assert allowed is not None
                action = allowed.float().argmax(1).numpy().copy()
                left = [block for block in blocks if block not in found]
                action[left] = choose(step, left, seen[left])
                observation, reward, terminated, _, infos = pool.step(action)
                for block in left:
                    if terminated[block]:
                        found[block] = [*(float(infos[name][block]) for name in COSTS), -float(reward[block])]
        costs = [found[block] for block in blocks]
        numbers = [*np.mean(costs[:learned], 0), np.mean([cost for *_, cost in costs[learned:]])]
        return " | ".join(f"{number:.4f}" for number in numbers)


def measured(demos: Demonstrations, fit: Fit, seed: int) -> list[str]:
    """Return a line for the recorded placements, the rule and the clone."""
    settings = load_preset("floorplan-bc", REPLAY_PRESETS_FOLDER)["algorithm"]
    config = build_replay_config(
        {"source": {"runs": [demos.run]}, "algorithm": {**settings, "learning_rate": fit.rate}}
    )
    algorithm = make_algorithm(config.algorithm, demos.environment)
    state, (loss,) = algorithm.init(seed), algorithm.losses
    generator = torch.Generator().manual_seed(seed)
    rows = {name: torch.cat([one[name] for one in demos.rows[: fit.blocks]]) for name in demos.rows[0]}

    def line(policy: str, seconds: float) -> str:
        with torch.no_grad():
            _, outputs = loss.function(state.params, LossInputs(rows, len(rows["action"])))
        likelihood, agreement = (float(outputs[name].mean()) for name in ("negative_log_likelihood", "agreement"))

        def likeliest(_step: int, _left: list[int], seen: Tensor) -> Any:
            noise = torch.zeros(len(seen), *algorithm.noise.shape)
            with torch.inference_mode():
                return algorithm.act(state.params, None, seen, noise)[0]["action"].numpy()

        return (
            head(policy, f"{seconds:.1f}")
            + f" {likelihood:.2f} | {agreement:.2f} | {demos.episodes(fit.blocks, likeliest)} |"
        )

    def head(policy: str, seconds: str) -> str:
        return f"| {fit.blocks} | {fit.updates} | {fit.rows} | {fit.rate:g} | {seconds} | {policy} |"

    recorded = demos.episodes(fit.blocks, lambda step, left, _: [int(demos.rows[i]["action"][step]) for i in left])
    lines = [head("recorded", "") + f" | | {recorded} |", line("the rule", 0.0)]
    begun, done = time.process_time(), 0
    while done < fit.updates:
        count = len(rows["action"])
        for part in torch.randperm(count, generator=generator).tensor_split(-(-count // fit.rows))[
            : fit.updates - done
        ]:
            gradient, _ = minibatch_gradient(
                loss, state, {name: column[part] for name, column in rows.items()}, {}, BLOCK_ROWS
            )
            state = algorithm.update(state, loss, gradient)
            done += 1
    return [*lines, line("the clone", time.process_time() - begun)]


if __name__ == "__main__":
    main()
