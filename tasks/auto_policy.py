"""`placement.policy = "auto"`: the policy whose rounds are predicted to be the shortest, of those that fit.

What is chosen, and what it rests on, becomes part of `run.json`, so a run that goes on keeps it. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError, GangRefusedError
from tasks.policies import AUTO, POLICIES, make_policy, unused_counts
from tasks.round_time import round_seconds
from tasks.start import check_placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tasks.config import ConfigT, PlacementSettings, RunConfig
    from tasks.cost import Sizes
    from tasks.policies import DistributionPolicy
    from tasks.round_time import PartSeconds

_COUNTS = ("act_tasks", "env_tasks", "learn_tasks")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement and the seconds that a round of it is predicted to take."""

    placement: PlacementSettings
    seconds: float

    def __str__(self) -> str:
        """`central (1 worker, 1 server) 12.3 ms`."""
        roles = ", ".join(f"{role.replicas} {role.name}" for role in make_policy(self.placement).roles)
        return f"{self.placement.policy} ({roles}) {1e3 * self.seconds:.3g} ms"


@dataclass(frozen=True, slots=True)
class Choice:
    """All that fit, the shortest first, and what the predictions rest on."""

    candidates: tuple[Candidate, ...]
    parts: PartSeconds

    @property
    def why(self) -> str:
        """For people: the best one, and what the others would take."""
        best, *others = self.candidates
        return f"a round is predicted to take {'; '.join(map(str, (best, *others)))}"

    def to_json(self) -> dict[str, Any]:
        """For `run.json`."""
        names = ("policy", *_COUNTS)
        return {
            "candidates": [
                {**{name: getattr(item.placement, name) for name in names}, "round_seconds": item.seconds}
                for item in self.candidates
            ],
            "measured": self.parts.to_json(),
        }


def candidates(config: ConfigT) -> Iterator[ConfigT]:
    """Every policy that ships with as many tasks as the settings say, and with one; those that can be played.

    Raises:
        ConfigError: none can.
    """
    refusals, seen = [], set()
    for name in POLICIES:
        choices = product(*({1, getattr(config.placement, count)} for count in _COUNTS))
        for counts in choices:
            update = {"policy": name, **dict(zip(_COUNTS, counts, strict=True))}
            placement = config.placement.model_copy(update=update)
            placement = placement.model_copy(update=dict.fromkeys(unused_counts(placement), 1))
            key = (name, *(getattr(placement, count) for count in _COUNTS))
            candidate = config.model_copy(update={"placement": placement})
            try:
                if key not in seen:
                    check_placement(candidate)
                    yield candidate
            except ConfigError as error:
                refusals.append(str(error))
            seen.add(key)
    if len(refusals) == len(seen):
        raise ConfigError(f"placement.policy = '{AUTO}': no policy can be played: {refusals[0]}")


def choose(
    config: RunConfig, sizes: Sizes, parts: PartSeconds, shortages: Callable[[DistributionPolicy], list[str]]
) -> Choice:
    """Compare all candidates that fit.

    Args:
        config: of the run.
        sizes: of what its loop moves.
        parts: what the parts of a round took.
        shortages: what a cluster lacks for a policy; nothing if it fits.

    Raises:
        GangRefusedError: none fits on the cluster.
    """
    found, lacking = [], []
    for candidate in candidates(config):
        policy = make_policy(candidate.placement)
        if lines := shortages(policy):
            lacking.append(f"{policy.name} needs {'; '.join(lines)}")
        else:
            found.append(Candidate(candidate.placement, round_seconds(policy, candidate, parts, sizes)))
    if not found:
        raise GangRefusedError(
            f"no policy fits on the cluster, even when it is idle: {'. '.join(lacking)}. Start workers with "
            f"`--resources`"
        )
    return Choice(tuple(sorted(found, key=lambda item: item.seconds)), parts)
