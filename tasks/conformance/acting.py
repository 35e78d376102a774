"""Checks `init` and `act` for faults that show as differing bytes, or as evaluations of another policy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from penstock.native.conformance.report import CheckFailedError
from penstock.tasks.conformance.trial import Trial, tensors_of
from penstock.tasks.specs import State

if TYPE_CHECKING:
    from torch import Tensor

_CARRY = "the next carry"
_DRAWS = 256
_TOLERANCE = 1e-3


class ActingChecks:
    """The checks; each returns a detail to report, or raises."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def check_init(self) -> str:
        """The parameters are a function of the seed, and differ between seeds."""
        algorithm = self._trial.algorithm
        torch.manual_seed(0)
        first = self._trial.pure("init", algorithm.init, 1)
        if not isinstance(first, State):
            raise CheckFailedError(f"init returned {type(first).__name__}, expected a State")
        torch.manual_seed(1)
        again, other = tensors_of(algorithm.init(1)), tensors_of(algorithm.init(2))
        before = tensors_of(first)
        for key, value in before.items():
            if not torch.equal(value, again[key]):
                raise CheckFailedError(
                    f"init(1) returns other numbers ({key}) when it is called again, expected the same bytes: draw "
                    f"from torch.Generator().manual_seed(seed) alone"
                )
        if all(torch.equal(value, other[key]) for key, value in before.items()):
            raise CheckFailedError(
                "init(1) and init(2) return the same parameters, expected different ones: seed a generator with the "
                "seed"
            )
        return f"{sum(value.numel() for value in before.values()):,} numbers"

    def check_rows(self) -> str:
        """`act` returns the declared columns, in their types and shapes, from a snapshot's groups alone."""
        trial = self._trial
        observation, noise, carry = self._inputs()
        try:
            rows, following = trial.algorithm.act(trial.snapshot, carry, observation, noise)
        except KeyError as error:
            raise CheckFailedError(
                f"act reads {error}, which a snapshot lacks: it has the groups {', '.join(trial.snapshot)}. Name the "
                f"group in actor_groups, or do not read it"
            ) from error
        declared = trial.algorithm.rows
        if rows.keys() != declared.keys():
            raise CheckFailedError(
                f"act returns the columns {', '.join(sorted(rows))}, expected those of rows: "
                f"{', '.join(sorted(declared))}"
            )
        for name, spec in declared.items():
            found = f"{str(rows[name].dtype).removeprefix('torch.')}{list(rows[name].shape)}"
            expected = f"{spec.dtype}{[len(observation), *spec.shape]}"
            if found != expected:
                raise CheckFailedError(
                    f"act gives '{name}' as {found}, expected {expected} as rows declares it: convert or reshape it, "
                    f"or declare what it is"
                )
        if (None if carry is None else carry.shape) != (None if following is None else following.shape):
            raise CheckFailedError(
                "act's next carry is not like initial_carry's, expected the same shape, or None both"
            )
        return ", ".join(f"{name} {spec}" for name, spec in declared.items())

    def check_pure(self) -> str:
        """The same arguments give the same rows, and nothing else changes."""
        observation, noise, carry = self._inputs()
        trial = self._trial
        with torch.inference_mode():
            trial.pure("act", trial.algorithm.act, trial.snapshot, carry, observation.clone(), noise.clone())
        return ""

    def check_row_wise(self) -> str:
        """A row of the result does not depend on another row of the arguments."""
        observation, noise, carry = self._inputs()
        if carry is not None:
            carry = self._act(carry, observation, noise)[_CARRY]  # all rows' first ones are alike
        whole = self._act(carry, observation, noise)
        for row in (0, len(observation) - 1):
            changed = observation.clone()
            changed[row] = changed[row] + 1
            others = torch.arange(len(observation)) != row
            for name, column in self._act(carry, changed, noise).items():
                if not torch.equal(column[others], whole[name][others]):
                    raise CheckFailedError(
                        f"'{name}' of other rows changes with the observation of row {row}, expected that rows are "
                        f"independent: a tile's size may not matter. Take no mean, rank or running number over rows"
                    )
        half = len(observation) // 2
        for cut in (slice(0, half), slice(half, None)):
            part = self._act(None if carry is None else carry[cut], observation[cut], noise[cut])
            for name, column in part.items():
                expected = whole[name][cut]
                if column.is_floating_point() and not torch.allclose(column, expected, _TOLERANCE, _TOLERANCE):
                    raise CheckFailedError(
                        f"'{name}' differs if half the rows are acted at a time, expected the same: use only "
                        f"the row's own arguments"
                    )
        return ""

    def check_greedy(self) -> str:
        """Zero noise gives the likeliest choice, or a vector in the middle of the sampled ones."""
        observation, _, carry = self._inputs()
        noise = self._trial.noise(_DRAWS)
        greedy = self._act(carry, observation, torch.zeros_like(noise[0]))
        sampled = [self._act(carry, observation, drawn) for drawn in noise]
        actions, spec = torch.stack([rows["action"] for rows in sampled]), self._trial.context.environment.action
        if spec.kind != "box" and "log_probability" in greedy:
            likeliest = torch.stack([rows["log_probability"] for rows in sampled]).amax(0)
            lacking = float((likeliest - greedy["log_probability"]).amax())
            if lacking > _TOLERANCE:
                raise CheckFailedError(
                    f"with zero noise an action is taken whose log-probability is {lacking:.3f} below another's, "
                    f"expected the likeliest: evaluation would measure something else. Add the noise to the logits"
                )
            return ""
        if spec.kind == "discrete":
            _require_likeliest(actions, greedy["action"], spec.n)
            return ""
        sizes = spec.sizes if spec.kind == "structured" else (0,) * math.prod(spec.shape)
        for number, size in enumerate(sizes):
            if size:
                _require_likeliest(actions.flatten(2)[..., number], greedy["action"].flatten(1)[..., number], size)
        numbers = [number for number, size in enumerate(sizes) if not size]
        if not numbers:
            return ""
        worst = _share_below(actions.flatten(2)[..., numbers], greedy["action"].flatten(1)[..., numbers])
        if abs(worst - 0.5) <= 0.25:  # eight standard deviations of the share of 256 draws
            return ""
        if self._acts_at_random(carry, observation, noise, greedy):
            return "at the start noise alone decides, so the middle of an action was not checked"
        raise CheckFailedError(
            f"with zero noise a number of the action is larger than {worst:.0%} of those with noise, expected the "
            f"middle: evaluation would measure something else. Displace a mean by the noise"
        )

    def _acts_at_random(
        self, carry: Tensor | None, observation: Tensor, noise: Tensor, greedy: dict[str, Tensor]
    ) -> bool:
        """Return whether observations do not matter as long as there is noise, and do without."""
        turned = observation.roll(1, 0)
        random = [self._act(carry, seen, noise[0])["action"] for seen in (observation, turned)]
        without = self._act(carry, turned, torch.zeros_like(noise[0]))["action"]
        return torch.equal(*random) and not torch.equal(without, greedy["action"])

    def _inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return a tile's first observations from a real pool, noise and the initial carry."""
        trial = self._trial
        pool = trial.context.make_pool(trial.envs)
        observation = torch.from_numpy(pool.reset(seed=1)[0].copy())
        pool.close()
        noise = trial.noise(1)[0]
        return observation, noise, trial.algorithm.initial_carry(trial.envs)

    @torch.inference_mode()
    def _act(self, carry: Tensor | None, observation: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """Act; the columns, and the next carry as one more of that name."""
        rows, following = self._trial.algorithm.act(self._trial.snapshot, carry, observation, noise)
        return rows if following is None else {**rows, _CARRY: following}


def _require_likeliest(sampled: Tensor, greedy: Tensor, count: int) -> None:
    """Refuse greedy choices `[B, ...]` of `count` that are far rarer among the sampled ones `[draws, B, ...]`."""
    choices = torch.arange(count).view(-1, *[1] * sampled.dim())
    shares = (sampled.unsqueeze(0) == choices).float().mean(1)
    own = (greedy.unsqueeze(0) == choices[:, 0]).float()
    lacking = float((shares.amax(0) - (shares * own).sum(0)).amax())
    if lacking > 0.25:
        raise CheckFailedError(
            f"with zero noise an action is taken that with noise is {lacking:.0%} rarer than another, expected the "
            f"likeliest: evaluation would measure something else"
        )


def _share_below(sampled: Tensor, greedy: Tensor) -> float:
    """Return the share of sampled numbers `[draws, B, n]` below the greedy one, where it is farthest from a half."""
    below = ((sampled < greedy).float() + 0.5 * (sampled == greedy).float()).mean(0).flatten()
    return float(below[(below - 0.5).abs().argmax()])
