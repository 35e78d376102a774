"""Checks `post`, `stats`, `plan`, the losses and `update` for faults that training hides for a long time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from penstock.native.conformance.report import CheckFailedError, SkippedError
from penstock.native.kernel_level import TORCH, level, use_level
from penstock.tasks.conformance.trial import Trial, clone, tensors_of
from penstock.tasks.model.algorithms.contract import Draw, FollowsRounds, Loss, window_spec
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.specs import State, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from penstock.tasks.specs import Batch

_TOLERANCE = 1e-3
_RATIO = {"kl": 0.0, "log_ratio": 0.0, "ratio": 1.0, "clip_fraction": 0.0}
"""Row outputs that show the ratio of acting and learning, and their values if both agree."""
_KL_TOLERANCE = 1e-5  # of a ratio that is wrong by half a percent


_ENDS = 8
"""Ends of episodes, per tile, after which the next episode is changed."""


class LearningChecks:
    """The checks; each returns a detail to report, or raises."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._algorithm = trial.algorithm

    def check_pure(self) -> str:
        """`post`, `stats`, `plan` and the losses are functions of their arguments, and change nothing."""
        trial, algorithm = self._trial, self._algorithm
        with torch.no_grad():
            batch = trial.pure("post", algorithm.post, trial.params, trial.trajectories[0])
            trial.pure("stats", algorithm.stats, batch)
        count = len(next(iter(batch.values())))

        def plan(seed: int) -> list[Tensor]:
            window = RoundWindow(window_spec(algorithm), count)
            window.begin_round()
            planned = algorithm.plan(torch.Generator().manual_seed(seed), window)
            return [item.rows if isinstance(item, Draw) else item for item in planned]

        for index in trial.pure("plan", plan, 1):
            if index.dtype != torch.int64 or (len(index) and not 0 <= int(index.min()) <= int(index.max()) < count):
                raise CheckFailedError(
                    f"plan gives {index.dtype} from {index.min()} to {index.max()}, expected int64 from 0 to "
                    f"{count - 1}"
                )
        rows, stats = trial.learn(trial.trajectories)
        for loss, batch in trial.inputs(rows, stats):
            trial.pure(f"the loss '{loss.name}'", loss.function, trial.state.params, batch)
        for name, (_, outputs) in trial.losses(rows, stats).items():
            for key, value in outputs.items():
                if value.requires_grad or value.dim() != 1 or len(value) != len(next(iter(rows.values()))):
                    raise CheckFailedError(
                        f"the loss '{name}' gives '{key}' as {list(value.shape)}"
                        f"{' with a gradient' if value.requires_grad else ''}, expected a number a row, detached"
                    )
        return ""

    def check_ratio(self) -> str:
        """Acting and learning compute the same log-probability."""
        if "log_probability" not in self._algorithm.rows:
            raise SkippedError("act stores no log_probability")
        rows, stats = self._trial.learn(self._trial.trajectories)
        outputs = {key: value for _, found in self._trial.losses(rows, stats).values() for key, value in found.items()}
        reported = [(name, kind) for kind in _RATIO for name in outputs if _without_agent(name) == kind]
        if not reported:
            raise SkippedError("no loss gives kl, ratio or log_ratio; give one of them to have it checked")
        for name, kind in reported:
            worst = float((outputs[name].double() - _RATIO[kind]).abs().max())
            if not worst <= (_KL_TOLERANCE if kind == "kl" else _TOLERANCE):
                raise CheckFailedError(
                    f"with the parameters that acted, '{name}' is off by {worst:.2g}, expected {_RATIO[kind]:g} for "
                    f"every row: learning has another log-probability of the stored actions than act. Use one "
                    f"formula for both"
                )
        return f"by {reported[0][0]}"

    def check_tiles(self) -> str:
        """Rows, sums and gradients do not depend on how environments are split into tiles."""
        trial = self._trial
        tiles, together = trial.trajectories, [_merged(trial.trajectories)]
        (apart, sums), (whole, sums_whole) = trial.learn(tiles), trial.learn(together)
        count = len(next(iter(apart.values())))
        is_a_row_a_step = count == trial.steps * trial.envs * trial.tiles
        if is_a_row_a_step:
            order = torch.arange(count).view(trial.steps, trial.tiles, trial.envs).transpose(0, 1).flatten()
            whole = {name: column[order] for name, column in whole.items()}  # a loss's noise depends on the position
            for name, column in apart.items():
                if not _close(column, whole[name]):
                    raise CheckFailedError(
                        f"post: '{name}' depends on which environments share a tile, expected that each environment is "
                        f"independent: use stats for what is global (the mean of advantages, say)"
                    )
        for name, value in sums.items():
            other = sums_whole[name]
            if not torch.allclose(value.double(), other.double(), _TOLERANCE, _TOLERANCE):
                worst = (value - other).abs().argmax()
                raise CheckFailedError(
                    f"stats: '{name}' of two tiles adds up to {value.flatten()[worst]:.4g}, and is "
                    f"{other.flatten()[worst]:.4g} of the same environments in one tile; expected the same: "
                    f"give sums, and divide in the loss"
                )
        if not is_a_row_a_step and any(loss.noise for loss in self._algorithm.losses):
            return "gradients are not compared, since rows have other noise in another order"
        gradients, gradients_whole = trial.losses(apart, sums), trial.losses(whole, sums_whole)
        for name, (gradient, _) in gradients.items():
            if not _close(gradient, gradients_whole[name][0]):
                raise CheckFailedError(
                    f"the loss '{name}' has another gradient when the same environments are in one tile instead of "
                    f"two; expected the same: use stats for what is global"
                )
        return ""

    def check_parts(self) -> str:
        """The gradients of a minibatch's parts add up, and row outputs do not depend on the split."""
        trial = self._trial
        rows, stats = trial.learn(trial.trajectories)
        count = len(next(iter(rows.values())))
        whole = trial.losses(rows, stats)
        cuts = (slice(0, count // 5), slice(count // 5, count // 2), slice(count // 2, count))
        parts = [trial.losses(rows, stats, cut) for cut in cuts]
        for name, (gradient, outputs) in whole.items():
            total = torch.stack([part[name][0] for part in parts]).sum(0)
            if not _close(total, gradient):
                off = float((total - gradient).norm() / gradient.norm().clamp_min(1e-12))
                raise CheckFailedError(
                    f"the loss '{name}': gradients of three parts of a minibatch add up to something {off:.0%} "
                    f"away from that of the whole; expected the same: use batch.mean, or divide the sum over "
                    f"rows by batch.count; take no mean over rows"
                )
            for key, value in outputs.items():
                # A divergence is rounding error alone here, so that it is compared with a floor.
                if not _close(torch.cat([part[name][1][key] for part in parts]), value, floor=0.01):
                    raise CheckFailedError(
                        f"the loss '{name}': '{key}' of a row depends on the other rows, expected its own: "
                        f"global quantities belong into stats"
                    )
        return ""

    def check_kernels(self) -> str:
        """Kernels and torch give the same gradients and row outputs, up to rounding."""
        trial, used = self._trial, level()
        if used == TORCH:
            raise SkippedError("PENSTOCK_KERNELS is 'torch', so there is nothing to compare")
        rows, stats = trial.learn(trial.trajectories)
        found = trial.losses(rows, stats)
        with use_level(TORCH):
            expected = trial.losses(rows, stats)
        for name, (gradient, outputs) in found.items():
            pairs = {"gradient": (gradient, expected[name][0])}
            pairs |= {f"'{key}'": (value, expected[name][1][key]) for key, value in outputs.items()}
            for what, (one, other) in pairs.items():
                # A divergence is rounding error alone here, so that it is compared with a floor.
                if not _close(one, other, floor=0.0 if what == "gradient" else 0.01):
                    raise CheckFailedError(
                        f"the loss '{name}' has another {what} by the kernels ({used}) than by torch, expected the "
                        f"same: a loss must not ask how its tensors were computed (grad_fn, is_leaf), and must use "
                        f"what networks return, not a copy of their formulas"
                    )
        return used

    def check_bootstrap(self) -> str:
        """The observation after a truncation, or after the round, changes a gradient."""
        trial = self._trial
        if not self._reads_later_rows():
            raise SkippedError(
                "post reads no later row, or rows are sequences without rewards: nothing is bootstrapped"
            )
        before = trial.gradients(trial.trajectories)
        for kind, ending in ((1, "truncated at the time limit"), (2, "cut off by the round's end")):
            changed = [_other_following(trajectory, trial.ends(trajectory)[kind]) for trajectory in trial.trajectories]
            if not any(changed):
                if kind == 1:
                    raise SkippedError("no episode was truncated in these rows; choose another --env")
                continue
            moved = [new or old for new, old in zip(changed, trial.trajectories, strict=True)]
            if _equal(before, trial.gradients(moved)):
                raise CheckFailedError(
                    f"what was observed after an episode was {ending} changes no gradient, expected a bootstrap from "
                    f"it: its values are too low otherwise. Use successor_values with the bootstrap rows, and multiply "
                    f"by `terminated == 0`, not by `truncated`"
                )
        return ""

    def check_leak(self) -> str:
        """No gradient depends on the observation after a termination, or on the next episode."""
        trial = self._trial
        before = trial.gradients(trial.trajectories)
        terminated = [_other_following(item, trial.ends(item)[0]) for item in trial.trajectories]
        if any(terminated):
            moved = [new or old for new, old in zip(terminated, trial.trajectories, strict=True)]
            if not _equal(before, trial.gradients(moved)):
                raise CheckFailedError(
                    "what was observed after a termination changes a gradient, expected that nothing follows it: "
                    "multiply the bootstrap value by `terminated == 0`"
                )
        remarks = (
            [] if any(terminated) else ["no episode was terminated in these rows, so only truncations were checked"]
        )
        if not self._check_next_episode():
            remarks.append("rows are sequences, so the next episode was not changed")
        return "; ".join(remarks)

    def check_update(self) -> str:
        """`update` changes the parameters and the optimizer of one group, `after_minibatch` no parameter."""
        trial = self._trial
        trained = {loss.group for loss in self._algorithm.losses}
        rows, stats = trial.learn(trial.trajectories)
        for loss in self._algorithm.losses:
            gradient = trial.losses(rows, stats)[loss.name][0]
            before, after = clone(trial.state), self._updated(loss.name, gradient)
            if not isinstance(after, State):
                raise CheckFailedError(f"update returned {type(after).__name__}, expected the State")
            others = trained - {loss.group}
            touched = [name for name in others if not torch.equal(before.params[name].flat, after.params[name].flat)]
            touched += [
                f"the optimizer of {name}"
                for name in others
                if not _equal(tensors_of(before.optimizer.get(name, {})), tensors_of(after.optimizer.get(name, {})))
            ]
            if touched:
                raise CheckFailedError(
                    f"update for the loss '{loss.name}' changes {' and '.join(sorted(touched))}, expected its own "
                    f"group '{loss.group}' alone: a parameter server sends nothing else back"
                )
            if gradient.any() and torch.equal(before.params[loss.group].flat, after.params[loss.group].flat):
                raise CheckFailedError(
                    f"update for the loss '{loss.name}' changes no parameter of '{loss.group}', expected a step: write "
                    f"into state.params['{loss.group}'].flat"
                )
            if not _equal(tensors_of(after), tensors_of(self._updated(loss.name, gradient))):
                raise CheckFailedError(
                    f"update for the loss '{loss.name}' returns another result when it is called again with the same "
                    f"arguments, expected a function of its arguments: keep counters in State"
                )
            self._check_independent(loss, rows, stats, after)
        follows: dict[str, Callable[[State], State]] = {"after_minibatch": self._algorithm.after_minibatch}
        if isinstance(self._algorithm, FollowsRounds):
            follows["after_round"] = partial(self._algorithm.after_round, stats=stats)
        for function, follow in follows.items():
            with torch.no_grad():
                after = trial.pure(function, lambda follow=follow: follow(clone(trial.state)))
            touched = [
                name for name in trained if not torch.equal(after.params[name].flat, trial.state.params[name].flat)
            ]
            if touched:
                raise CheckFailedError(
                    f"{function} changes the parameters of {', '.join(sorted(touched))}, expected targets alone, and "
                    f"groups that no loss trains: a step of the optimizer belongs into update"
                )
        return ""

    def _check_independent(self, updated: Loss, rows: Batch, stats: Mapping[str, Tensor], after: State) -> None:
        """A loss has the same gradient after an update of another group, if independent; or of other agents' groups."""
        before, now = self._trial.losses(rows, stats), self._trial.losses(rows, stats, state=after)
        for loss in self._algorithm.losses:
            same = torch.equal(before[loss.name][0], now[loss.name][0])
            if loss.independent and loss.group != updated.group and not same:
                raise CheckFailedError(
                    f"the loss '{loss.name}' has another gradient after an update of '{updated.group}', and is "
                    f"declared independent; expected that it reads no group that another loss trains: leave out "
                    f"independent=True"
                )
            if loss.agents and updated.agents and not {*loss.agents} & {*updated.agents} and not same:
                raise CheckFailedError(
                    f"the loss '{loss.name}' of agents {list(loss.agents)} has another gradient after an update of "
                    f"'{updated.group}', which agents {list(updated.agents)} own; expected that it reads no parameters "
                    f"of other agents, which may be another learner's: leave out agents"
                )

    def _updated(self, name: str, gradient: Tensor) -> State:
        loss = next(loss for loss in self._algorithm.losses if loss.name == name)
        with torch.no_grad():
            return self._algorithm.update(clone(self._trial.state), loss, gradient.clone())

    def _reads_later_rows(self) -> bool:
        """Return whether a later row of the same episode changes a training row; of sequences, whether rewards do."""
        first = self._trial.trajectories[0]
        ends = torch.zeros_like(first.columns["terminated"], dtype=torch.bool)
        ends.view(-1)[first.bootstrap_rows] = True
        step = int((~ends[:, 0]).nonzero()[0])
        rows = self._rows(first)
        if len(next(iter(rows.values()))) != ends.numel():
            paid = replace(first, columns={**first.columns, "reward": first.columns["reward"] + 1})
            return not _equal(rows, self._rows(paid))
        return any(
            not torch.equal(column[step * ends.shape[1]], rows[name][step * ends.shape[1]])
            for name, column in self._rows(_changed_at(first, step + 1, 0)).items()
        )

    def _check_next_episode(self) -> bool:
        """Check that rows before an episode's end do not depend on the next one; False if rows are no single steps."""
        for trajectory in self._trial.trajectories:
            steps, envs = trajectory.columns["terminated"].shape
            rows = self._rows(trajectory)
            if len(next(iter(rows.values()))) != steps * envs:
                return False
            for row in trajectory.bootstrap_rows[trajectory.bootstrap_rows < (steps - 1) * envs][:_ENDS].tolist():
                step, env = divmod(row, envs)
                changed = self._rows(_changed_at(trajectory, step + 1, env))
                for name, column in changed.items():
                    earlier = [t * envs + env for t in range(step + 1)]
                    if not torch.equal(column[earlier], rows[name][earlier]):
                        how = "terminated" if trajectory.columns["terminated"][step, env] else "truncated"
                        raise CheckFailedError(
                            f"'{name}' of an episode that was {how} changes with the first row of the next one, "
                            f"expected that episodes are independent: cut at `terminated | truncated`, and "
                            f"bootstrap from trajectory.bootstrap_observation"
                        )
        return True

    def _rows(self, trajectory: Trajectory) -> Batch:
        with torch.no_grad():
            return self._algorithm.post(self._trial.params, trajectory)


def _without_agent(output: str) -> str:
    """Return the name of a row output without an agent's number, as in `kl` for `kl_2`."""
    name, _, agent = output.rpartition("_")
    return name if agent.isdecimal() else output


def _changed_at(trajectory: Trajectory, step: int, env: int) -> Trajectory:
    """Change the observation and the reward of one row."""
    columns = dict(trajectory.columns)
    for name in ("observation", "reward"):
        columns[name] = columns[name].clone()
        columns[name][step, env] += 1
    return replace(trajectory, columns=columns)


def _other_following(trajectory: Trajectory, chosen: Tensor) -> Trajectory | None:
    """Change the observations after the chosen bootstrap rows; return None if none is chosen."""
    if not chosen.any():
        return None
    following = trajectory.bootstrap_observation.clone()
    following[chosen] += 1
    return replace(trajectory, bootstrap_observation=following)


def _merged(tiles: list[Trajectory]) -> Trajectory:
    """Merge the tiles' environments into one tile."""
    columns = {name: torch.cat([tile.columns[name] for tile in tiles], 1) for name in tiles[0].columns}
    envs = tiles[0].columns["terminated"].shape[1]
    rows = torch.cat(
        [
            tile.bootstrap_rows // envs * (envs * len(tiles)) + index * envs + tile.bootstrap_rows % envs
            for index, tile in enumerate(tiles)
        ]
    )
    order = rows.argsort()
    following = torch.cat([tile.bootstrap_observation for tile in tiles])
    return Trajectory(columns, rows[order], following[order])


def _close(one: Tensor, other: Tensor, floor: float = 0.0) -> bool:
    """Compare up to rounding, relative to the largest number, or to `floor` if that is larger."""
    if one.shape != other.shape:
        return False
    largest = max(floor, float(other.double().abs().max())) if other.numel() else floor
    return torch.allclose(one.double(), other.double(), _TOLERANCE, _TOLERANCE * largest)


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
