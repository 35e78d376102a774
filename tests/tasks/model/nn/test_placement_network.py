"""The network for macro placement: learning computes what acting did, on every block; and it sees the netlist alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock.native.floorplan import BlockSpec, generate_block
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.model.algorithms.impala import IMPALA
from penstock.tasks.model.nn.placement_network import floorplan, graphs_of, init_floorplan
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.on_policy import IMPALASettings
from penstock.tasks.setup.planning.dry_run import training_rows, trial_run
from penstock.tasks.specs import Facts, LossInputs

from ....support.algorithms.ppo_cases import with_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.tasks.runtime.run_context import RunContext

SMALL: dict[str, Any] = {"network": "floorplan", "features": 4, "hidden": [8], "minibatches": 2}


@pytest.fixture
def context(tmp_path) -> Iterator[RunContext]:
    """Two blocks of 3 and 4 macros on 10 x 9 cells, environments in turn."""
    blocks = []
    for seed, macros in enumerate((3, 4)):
        spec = BlockSpec(macros, 5, 6, columns=10, rows=9, hard_share=0.2, seed=seed)
        netlist, placement = generate_block(tmp_path / str(seed), spec)
        blocks.append({"netlist": str(netlist), "placement": str(placement)})
    environment = {"id": "Floorplan-v0", "num_envs": 4, "envs_per_tile": 4, "blocks": blocks}
    config = build_config({"environment": environment, "algorithm": SMALL, "schedule": {"round_steps": 9}})
    with trial_run(config) as (_, found):
        yield found


@pytest.mark.parametrize("kind", ["ppo", "shared", "impala"])
def test_learning_and_acting_compute_the_same(context, kind):
    """Log-probabilities agree to 1e-5, no forbidden cell is chosen, and every gradient is finite and not all zero."""
    if kind == "impala":
        context = replace(context, algorithm=IMPALA(IMPALASettings(**{**SMALL, "hidden": (8,)}), context.environment))
    if kind == "shared":
        context = replace(context, algorithm=with_settings(context.algorithm, shared_network=True))
    algorithm = context.algorithm
    state = algorithm.init(3)
    with torch.no_grad():
        for group in state.params.values():
            group.flat.mul_(2.0)  # far from uniform
    actor = TileActor(context, 0)
    actor.start()
    acted = actor.act_round(0, state.params, RoundBuffers(context, 0))
    arrays = acted.buffers.arrays
    allowed = arrays["observation"][..., :90]
    assert np.take_along_axis(allowed, arrays["action"][..., None], -1).all()
    rows = training_rows(context, state, acted)
    stats = {name: float(value) for name, value in algorithm.stats(rows).items()}
    count = len(rows["action"])
    loss = algorithm.losses[0]
    _, outputs = loss.function(state.params, LossInputs(rows, count, stats, targets=state.targets))
    assert outputs["kl"].max() < 1e-10  # of two log-probabilities that differ by d it is d squared over 2
    for loss in algorithm.losses:
        gradient, _ = minibatch_gradient(loss, state, rows, stats, 16, count, None)
        assert torch.isfinite(gradient).all()
        assert (gradient != 0).any()


@pytest.mark.parametrize("shared", [False, True])
def test_a_fresh_policy_places_macros_at_the_edge_where_ties_are_short(context, shared):
    """The first macro's likeliest allowed cell is far from the middle, and no cell as far out has shorter ties."""
    algorithm = with_settings(context.algorithm, shared_network=shared)
    params = algorithm.init(3).params[algorithm.actor_groups[0]]
    pool = make_pool(context.config, 2)
    observation, _ = pool.reset(seed=0)
    pool.close()
    seen, allowed = context.environment.split(torch.from_numpy(observation))
    assert allowed is not None
    scores = floorplan(params, context.environment.facts, seen)[:, :90].masked_fill(~allowed.bool(), -torch.inf)
    row, column = (side.flatten() for side in torch.meshgrid(torch.arange(9), torch.arange(10), indexing="ij"))
    out = torch.maximum((row - 4).abs() / 4, (column - 4.5).abs() / 4.5)
    for block, cell in enumerate(scores.argmax(1).tolist()):
        ties = graphs_of(context.environment.facts)[block].fixed[0]
        lengths = ((column - column[:, None]).abs() / 10 + (row - row[:, None]).abs() / 9) @ ties
        assert out[cell] > out[allowed[block].bool()].median()
        assert lengths[cell] == lengths[allowed[block].bool() & (out == out[cell])].min()


def test_the_order_of_soft_macros_and_ports_does_not_matter(context):
    """Outputs are the same to 1e-4 when soft macros and port groups are listed in another order."""
    facts = context.environment.facts
    first = {name: values[values[:, 0] == 0] for name, values in facts.items() if name != "grid"}
    nodes, edges = first["nodes"], first["edges"].copy()
    order = np.concatenate([np.arange(3), 3 + np.random.default_rng(0).permutation(len(nodes) - 3)])
    edges[:, 1:3] = np.argsort(order)[edges[:, 1:3].astype(int)]
    one, other = (
        Facts({"grid": facts["grid"], "nodes": listed, "edges": ties})
        for listed, ties in ((nodes, first["edges"]), (nodes[order], edges))
    )
    params = init_floorplan(one, 4, (8,), 91, 1.0, torch.Generator().manual_seed(1))
    seen = torch.tensor([[0, 2, 0, 3, 4, 7, 1, 255, 255, 255, 255]], dtype=torch.uint8)
    assert torch.allclose(floorplan(params, one, seen), floorplan(params, other, seen), atol=1e-4)


def test_soft_macros_tie_their_neighbours():
    """Two macros tied to one soft macro by weights 1 and 3 are tied by 3/4, as springs in a row are."""
    nodes = np.array([[0, kind, 0.1, 0.1, 0.5, 0.5] for kind in (0, 0, 0, 1)])
    edges = np.array([[0, 0, 3, 1.0], [0, 1, 3, 3.0], [0, 0, 2, 0.75]])
    (graph,) = graphs_of(Facts({"grid": np.array([4.0, 4.0]), "nodes": nodes, "edges": edges}))
    assert float(graph.ties[0, 1]) == pytest.approx(float(graph.ties[0, 2]), rel=1e-4)
    assert graph.ties[1, 2] == 0


def test_outputs_are_on_the_device_of_the_inputs():
    """Nothing stays on the CPU where parameters and observations are elsewhere: on the device without numbers."""
    nodes = np.array([[0, kind, 0.1, 0.1, 0.5, 0.5] for kind in (0, 0, 1, 2)])
    facts = Facts({"grid": np.array([4.0, 3.0]), "nodes": nodes, "edges": np.array([[0, 0, 2, 1.0], [0, 1, 3, 3.0]])})
    params = init_floorplan(facts, 4, (8,), 13, 1.0, torch.Generator())
    elsewhere = {name: value.to("meta") for name, value in params.items()}
    output = floorplan(elsewhere, facts, torch.zeros((5, 7), dtype=torch.uint8, device="meta"))
    assert (output.device.type, output.shape) == ("meta", (5, 13))


def test_a_netlist_is_needed():
    """The network is refused for an environment that has none, in a line."""
    config = build_config({"algorithm": {"network": "floorplan"}})
    with pytest.raises(ConfigError, match=r"^algorithm.network = 'floorplan': CartPole-v1 has no netlist"):
        make_pool(config, 1)
