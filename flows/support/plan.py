"""`penstock plan`: predicts the traffic of a distribution between processes, before a run is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.storage.errors import ConfigError
from penstock.storage.stores.open import open_store
from penstock.tasks.environments.header import with_header
from penstock.tasks.setup.distribution.policies import AUTO
from penstock.tasks.setup.planning.auto_policy import choose
from penstock.tasks.setup.planning.preflight import check_acting, check_device, check_distribution, check_reach
from penstock.tasks.setup.planning.run_calibration import measure_parts, measure_sizes
from penstock.tasks.setup.planning.traffic import edge_costs

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.setup.config.run import RunConfig


def plan(config: RunConfig, on_trial: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Return roles, edges and predicted costs of a configuration; runs a few trial rounds in another process.

    `note` names costs that the trial does not cover: those of minibatches, where the first rounds only fill a window.

    Args:
        config: of the run.
        on_trial: called before the trial, when the configuration is known to be right.

    Raises:
        ConfigError: the configuration is wrong, as `penstock train` says it, or its trial fails.
    """
    open_store(config.store)
    config = with_header(config)
    check_device(config)
    if unfit := check_acting(config):
        raise ConfigError(unfit)
    chosen: dict[str, object] = {}
    if config.distribution.policy == AUTO and not config.distribution.roles:
        check_reach(config, None)
        on_trial()
        found, parts = measure_parts(config, None)
        choice = choose(config, found, parts, lambda _: [])
        config = config.model_copy(update={"distribution": choice.candidates[0].distribution})
        policy, chosen = check_distribution(config), {"chosen": choice.to_json(), "why": choice.why}
    else:
        policy = check_distribution(config)
        check_reach(config, policy)
        on_trial()
        found = measure_sizes(config)
    warm_up = getattr(config.algorithm, "warm_up_rows", 0)
    filling = {
        "note": f"costs are those of the first rounds, which learn nothing until the window has {warm_up:,} rows "
        f"(algorithm.warm_up_rows); for those of later rounds, ask with --algorithm.warm-up-rows 1"
    }
    return {
        **chosen,
        **({} if found.updates else filling),
        "policy": policy.name,
        "roles": [
            {
                "role": role.name,
                "fragments": " ".join(sorted(role.fragments)),
                "replicas": role.replicas,
                "takes": " ".join(f"{name}={amount:g}" for name, amount in role.resources),
                "on": " ".join(address or "this machine" for address in config.cluster.schedulers_of(role.name)),
            }
            for role in policy.roles
        ],
        "edges": [
            {
                "edge": cost.crossing.edge.name,
                "fires a": cost.crossing.edge.granularity,
                "needs": cost.crossing.communication,
                "from": cost.crossing.source.name,
                "to": cost.crossing.target.name,
                "way": cost.way,
                "bytes a round": round(cost.round_bytes),
                "messages a round": round(cost.round_messages),
            }
            for cost in edge_costs(policy, config, found)
        ],
        "stored_bytes_a_round": config.environment.tiles * found.shard_bytes + found.snapshot_bytes,
        **({"difference_bytes_a_round": found.difference_bytes} if found.difference_bytes else {}),
    }
