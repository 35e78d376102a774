"""Chooses for `distribution.policy = "auto"` the policy with the shortest predicted round, among those that fit.

The choice and the measurements behind it are stored in `run.json`, so a resumed run keeps them. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import ConfigError, GangRefusedError
from penstock.tasks.setup.distribution.policies import AUTO, POLICIES, make_policy, unused_counts
from penstock.tasks.setup.planning.preflight import check_distribution
from penstock.tasks.setup.planning.round_time import round_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.tasks.setup.config.run import ConfigT, RunConfig
    from penstock.tasks.setup.distribution.policies import DistributionPolicy
    from penstock.tasks.setup.distribution.settings import DistributionSettings
    from penstock.tasks.setup.planning.round_time import PartSeconds
    from penstock.tasks.setup.planning.traffic import Sizes

_COUNTS = ("act_tasks", "env_tasks", "learn_tasks")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A distribution of the fragments, and the predicted seconds of a round under it."""

    distribution: DistributionSettings
    seconds: float

    def __str__(self) -> str:
        """Return it as in `central (1 worker, 1 server) 12.3 ms`."""
        roles = ", ".join(f"{role.replicas} {role.name}" for role in make_policy(self.distribution).roles)
        return f"{self.distribution.policy} ({roles}) {1e3 * self.seconds:.3g} ms"


@dataclass(frozen=True, slots=True)
class Choice:
    """All candidates that fit, the shortest first, and the part times that the predictions are made from."""

    candidates: tuple[Candidate, ...]
    parts: PartSeconds

    @property
    def why(self) -> str:
        """Return the best candidate and the predictions of the others, as text."""
        best, *others = self.candidates
        return f"a round is predicted to take {'; '.join(map(str, (best, *others)))}"

    def to_json(self) -> Mapping[str, object]:
        """Return the choice as `run.json` stores it."""
        names = ("policy", *_COUNTS)
        return {
            "candidates": [
                {**{name: getattr(item.distribution, name) for name in names}, "round_seconds": item.seconds}
                for item in self.candidates
            ],
            "measured": self.parts.to_json(),
        }


def candidates(config: ConfigT) -> Iterator[ConfigT]:
    """Yield every built-in policy that is supported, with as many tasks as the settings give, and with one.

    Raises:
        ConfigError: no policy is supported.
    """
    refusals, seen = [], set()
    for name in POLICIES:
        choices = product(*({1, getattr(config.distribution, count)} for count in _COUNTS))
        for counts in choices:
            update: dict[str, Any] = {"policy": name, **dict(zip(_COUNTS, counts, strict=True))}
            for fewest, most in (("min_act_tasks", update["act_tasks"]), ("min_env_tasks", update["env_tasks"])):
                if (given := getattr(config.distribution, fewest)) is not None:
                    update[fewest] = min(given, most)
            distribution = config.distribution.model_copy(update=update)
            distribution = distribution.model_copy(update=unused_counts(distribution))
            key = (name, *(getattr(distribution, count) for count in _COUNTS))
            candidate = config.model_copy(update={"distribution": distribution})
            try:
                if key not in seen:
                    check_distribution(candidate)
                    yield candidate
            except ConfigError as error:
                refusals.append(str(error))
            seen.add(key)
    if len(refusals) == len(seen):
        raise ConfigError(f"distribution.policy = '{AUTO}': no policy is supported: {refusals[0]}")


def choose(
    config: RunConfig, sizes: Sizes, parts: PartSeconds, shortages: Callable[[DistributionPolicy], list[str]]
) -> Choice:
    """Compare all candidates that fit; those whose roles would have to shrink only where no other fits.

    Args:
        config: The run's settings.
        sizes: Bytes and counts of the messages of a round.
        parts: Seconds of the parts of a round.
        shortages: Returns the resources that the cluster lacks for a policy; empty if it fits.

    Raises:
        GangRefusedError: no candidate fits on the cluster.
    """
    found: list[Candidate] = []
    shrunk: list[Candidate] = []
    lacking: list[str] = []
    for candidate in candidates(config):
        policy = make_policy(candidate.distribution)
        if policy.pools == "torch" and parts.torch_round is None:
            lacking.append(f"{policy.name} needs an environment that the learner's device can step")
        elif lines := shortages(policy):
            lacking.append(f"{policy.name} needs {'; '.join(lines)}")
        else:
            # The prediction is for all replicas.
            whole = replace(policy, roles=tuple(replace(role, fewest=None) for role in policy.roles))
            fitting = shrunk if shortages(whole) else found
            fitting.append(Candidate(candidate.distribution, round_seconds(policy, candidate, parts, sizes)))
    found = found or shrunk
    if not found:
        raise GangRefusedError(
            f"no policy fits on the cluster, even when it is idle: {'. '.join(lacking)}. Start workers with "
            f"`--resources`, and with a thread for each slot (`--nthreads`)"
        )
    return Choice(tuple(sorted(found, key=lambda item: item.seconds)), parts)
