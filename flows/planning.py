"""`penstock plan`: what a placement sends over process borders, before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks.auto_policy import choose
from tasks.calibrate import timed, tried
from tasks.cost import edge_costs
from tasks.policies import AUTO
from tasks.start import check_placement, check_reach

if TYPE_CHECKING:
    from tasks.config import RunConfig


def plan(config: RunConfig) -> dict[str, Any]:
    """Roles, edges and predicted costs of a configuration. Tries a few rounds of it, in another process.

    `note` says what the costs leave out: those of minibatches, where the first rounds only fill a window.

    Raises:
        ConfigError: the configuration is wrong, or can't be tried.
    """
    check_reach(config)
    chosen: dict[str, Any] = {}
    if config.placement.policy == AUTO and not config.placement.roles:
        found, parts = timed(config, None)
        choice = choose(config, found, parts, lambda _: [])
        config = config.model_copy(update={"placement": choice.candidates[0].placement})
        policy, chosen = check_placement(config), {"chosen": choice.to_json(), "why": choice.why}
    else:
        policy, found = check_placement(config), tried(config)
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
    }
