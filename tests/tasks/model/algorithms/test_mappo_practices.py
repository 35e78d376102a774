"""MAPPO as Yu et al. 2022 recommend it: normalised values, limited errors of values, a memory for each agent."""

import dataclasses

import pytest
import torch
from torch import Tensor

from penstock import native
from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.setup.config.on_policy import IPPOSettings, MAPPOSettings
from penstock.tasks.specs import Batch, EnvironmentSpec, LossInputs, State, Trajectory

from ....support.algorithms.ppo_cases import random

ENVS, STEPS, AGENTS, WIDTH, CUT = 4, 6, 3, 5, 3
STATS = {"count": 1.0, "advantage": 0.0, "advantage_square": 1.0}
ENDS = torch.tensor([9, 10, 20, 21, 22, 23])


def made(name: str = "simple_spread_v3", *, central: bool = True, **settings: object) -> MAPPO:
    pool = native.make(name, 1)
    environment = EnvironmentSpec.from_pool(name, dict(pool.environment))
    kind = MAPPOSettings if central else IPPOSettings
    return MAPPO(kind(hidden=(16,), **settings), environment)  # type: ignore[arg-type]


def remembering(name: str = "simple_spread_v3", **settings: object) -> MAPPO:
    return made(name, network="recurrent", features=WIDTH, sequence_steps=CUT, **settings)  # type: ignore[arg-type]


WITH_MEMORY = [
    pytest.param(remembering(), id="mappo"),
    pytest.param(remembering(central=False), id="ippo"),
    pytest.param(remembering("simple_spread_continuous_v3"), id="continuous"),
    pytest.param(remembering(shared_parameters=False), id="apart"),
]


def round_of(mappo: MAPPO, state: State) -> Trajectory:
    """A round as actors store it: an episode of the second environment is truncated at step 2, one of the third ends.

    Memories are not empty before the first step, and are where an episode begins, as the runtime has it.
    """
    observation, carry = random(STEPS, ENVS, AGENTS, 18), mappo.initial_carry(ENVS)
    flags = torch.zeros(2, STEPS, ENVS, dtype=torch.uint8)
    flags[0, 2, 2] = flags[1, 2, 1] = 1
    if carry is not None:
        carry = random(*carry.shape, seed=7)
    acted = []
    with torch.no_grad():
        for step, noise in enumerate(random(STEPS, ENVS, *mappo.noise.shape, seed=1)):
            rows, carry = mappo.act(state.params, carry, observation[step], noise)
            acted.append(rows)
            if carry is not None:
                carry = carry * (flags[:, step].sum(0) == 0).view(-1, 1, 1, 1)
    columns = {name: torch.stack([rows[name] for rows in acted]) for name in mappo.rows}
    columns |= {"observation": observation, "reward": random(STEPS, ENVS, AGENTS, seed=2)}
    columns |= {"terminated": flags[0], "truncated": flags[1]}
    return Trajectory(columns, ENDS, random(len(ENDS), AGENTS, 18, seed=3))


def batch_of(mappo: MAPPO, state: State) -> Batch:
    with torch.no_grad():
        return mappo.post(state.params, round_of(mappo, state))


def learned_targets(mappo: MAPPO, state: State, scale: float) -> None:
    """Give the value normaliser moments, as rounds whose targets are around -20 would."""
    stats = {name: value.sum() for name, value in mappo.stats(targets_batch(scale)).items()}
    mappo.after_round(state, {name: value.view(stats_shape(name)) for name, value in stats.items()})


def targets_batch(scale: float) -> Batch:
    return {"advantage": random(50, AGENTS), "value_target": scale * random(50, AGENTS, seed=9) - 20.0}


def stats_shape(name: str) -> tuple[int, ...]:
    return (1,) if name in ("value_targets/sum", "value_targets/square") else ()


# Normalised values


@pytest.mark.parametrize("central", [True, False])
def test_a_normalised_critic_is_one_whose_last_layer_is_scaled(central: bool):
    """With the moments in its last layer, a plain critic has the same advantages and targets, and values to bootstrap.

    The targets of the loss have mean 0 and deviation 1 where targets are as those before.
    """
    mappo, plain = made(central=central, normalize_value=True), made(central=central)
    state, other = mappo.init(1), plain.init(1)
    learned_targets(mappo, state, 4.0)
    targets = targets_batch(4.0)["value_target"].double()
    mean, deviation = targets.mean().float(), targets.std(unbiased=False).float()
    with torch.no_grad():
        critic = other.params["value"]
        critic["1.weight"].mul_(deviation)
        critic["1.bias"].mul_(deviation).add_(mean)
    found, expected = batch_of(mappo, state), batch_of(plain, other)
    for name in ("advantage", "value_target"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4)
    rows = {**found, "value_target": targets_batch(4.0)["value_target"][: STEPS * ENVS]}
    value = (rows["value_target"] - mean) / deviation
    _, outputs = mappo.losses[1].function(state.params, LossInputs(rows, STEPS * ENVS, STATS))
    with torch.no_grad():
        inputs = mappo._critics.inputs(state.params["value"], found["observation"], range(AGENTS))
        output = mappo._critics.network.step(state.params["value"], None, inputs)[0].squeeze(-1)
    torch.testing.assert_close(outputs["value_loss"], (0.5 * (output - value).square()).mean(-1), rtol=1e-4, atol=1e-4)


def test_moments_are_of_all_agents_and_add_up_over_tiles():
    """Sums of parts of the rows are those of the whole, and give the targets' mean and deviation."""
    mappo = made(normalize_value=True)
    batch = targets_batch(4.0)
    parts = [mappo.stats({name: column[cut] for name, column in batch.items()}) for cut in (slice(9), slice(9, None))]
    state = mappo.init(1)
    mappo.after_round(state, {name: parts[0][name] + parts[1][name] for name in parts[0]})
    targets = batch["value_target"].double()
    torch.testing.assert_close(state.targets["value_targets/mean"][0], targets.mean())
    torch.testing.assert_close(state.targets["value_targets/variance"][0], targets.var(unbiased=False))
    assert state.targets["value_targets/count"].item() == targets.numel()
    assert "value_targets" not in mappo.actor_groups


# Limited errors


def test_clipped_values_are_held_near_those_of_the_rounds_start():
    """In the critic's units: at first nothing is held, and after a large step the loss is the larger of both."""
    mappo = made(value_clip_range=0.05, huber_delta=0.5, normalize_value=True)
    state = mappo.init(1)
    learned_targets(mappo, state, 4.0)
    batch = batch_of(mappo, state)
    inputs = LossInputs(batch, STEPS * ENVS, STATS)

    def losses(settings: dict[str, float]) -> Tensor:
        other = dataclasses.replace(mappo, settings=mappo.settings.model_copy(update=settings))
        return other.losses[1].function(state.params, inputs)[1]["value_loss"]

    torch.testing.assert_close(losses({}), losses({"value_clip_range": 0.0}))
    with torch.no_grad():
        state.params["value"]["1.bias"].add_(1.0)
    held, free = losses({}), losses({"value_clip_range": 0.0})
    assert (held >= free - 1e-6).all()
    assert (held > free + 1e-3).any()
    assert (losses({"huber_delta": 0.0}) >= held - 1e-6).all()


# Memories


@pytest.mark.parametrize("mappo", WITH_MEMORY)
def test_rows_store_each_agents_memories(mappo: MAPPO):
    """Before the step, of the policy and of the critic; the next ones depend on the memory that was."""
    state, carry = mappo.init(1), random(5, 2, AGENTS, WIDTH)
    empty = mappo.initial_carry(5)
    assert empty is not None
    assert (empty.shape, empty.any().item()) == (carry.shape, False)
    noise = torch.zeros(5, *mappo.noise.shape)
    rows, after = mappo.act(state.params, carry, random(5, AGENTS, 18), noise)
    assert torch.equal(rows["memory"], carry)
    assert mappo.rows["memory"].shape == carry.shape[1:]
    assert after is not None
    changed = carry.clone()
    changed[:, :, 1] += 1.0
    other_rows, other = mappo.act(state.params, changed, random(5, AGENTS, 18), noise)
    assert other is not None
    assert torch.equal(other[:, :, [0, 2]], after[:, :, [0, 2]]), "a memory is of one agent alone"
    assert not torch.isclose(other[:, :, 1], after[:, :, 1]).any()
    assert torch.equal(other_rows["log_probability"][:, [0, 2]], rows["log_probability"][:, [0, 2]])
    assert set(mappo.actor_groups) == set(state.params)


@pytest.mark.parametrize("mappo", WITH_MEMORY)
def test_sequences_compute_what_acting_did(mappo: MAPPO):
    """Also over an episode's end within a sequence: no ratio differs from 1, and values are those of `post`."""
    state = mappo.init(1)
    batch = batch_of(mappo, state)
    rows = STEPS // CUT * ENVS
    assert batch["observation"].shape == (rows, CUT, AGENTS, 18)
    assert batch["memory"].shape == (rows, 2, AGENTS, WIDTH)
    assert not batch["fresh"][:, 1:].any(), "the ends are a sequence's last steps here"
    whole = dataclasses.replace(mappo, settings=mappo.settings.model_copy(update={"sequence_steps": STEPS}))
    longer = batch_of(whole, state)
    assert longer["fresh"][:, 1:].sum() == 2
    for algorithm, given in ((mappo, batch), (whole, longer)):
        for loss in algorithm.losses:
            inputs = LossInputs({**given, "value_target": given["value_target"] - given["advantage"]}, rows, STATS)
            _, outputs = loss.function(state.params, inputs)
            for name, values in outputs.items():
                if name.startswith(("kl", "value_loss")):
                    assert values.shape == (len(given["memory"]),)
                    assert values.abs().max() < 1e-5, name


@pytest.mark.parametrize("mappo", WITH_MEMORY)
def test_parts_of_a_minibatch_of_sequences_add_up(mappo: MAPPO):
    """Scalars, gradients and row outputs, however learners split the sequences."""
    state = mappo.init(1)
    batch = batch_of(mappo, state)
    rows = len(batch["memory"])
    for loss in mappo.losses:
        leaves = state.params[loss.group].leaves

        def gradient(part: slice) -> tuple[Tensor, Tensor]:
            given = {name: column[part] for name, column in batch.items()}
            scalar, _ = loss.function(state.params, LossInputs(given, rows, STATS))  # noqa: B023
            parts = torch.autograd.grad(scalar, leaves)  # noqa: B023
            return scalar.detach(), torch.cat([each.reshape(-1) for each in parts])

        whole, first, second = gradient(slice(None)), gradient(slice(3)), gradient(slice(3, None))
        torch.testing.assert_close(first[0] + second[0], whole[0])
        torch.testing.assert_close(first[1] + second[1], whole[1])


def test_settings_at_their_defaults_are_no_part_of_a_runs_identity():
    """Older runs keep theirs, their columns and their rows."""
    added = {"normalize_value", "value_decay", "huber_delta", "value_clip_range", "network", "features"}
    assert not added & MAPPOSettings().identity().keys()
    assert MAPPOSettings(normalize_value=True).identity()["normalize_value"] is True
    assert (MAPPOSettings().columns, MAPPOSettings().row_steps) == (("action", "log_probability"), 1)
    recurrent = IPPOSettings(network="recurrent", sequence_steps=4)
    assert (recurrent.columns, recurrent.row_steps) == (("action", "log_probability", "memory"), 4)
    state = made().init(1)
    assert set(state.params) == {"policy", "value"}
    assert not state.targets
