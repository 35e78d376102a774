"""Rounds that an actor hands over equal their stored shards, are nobody else's memory, and are few."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.open import open_store
from penstock.tasks.data.input.hand_over import HandedRows, ref_of
from penstock.tasks.data.input.pipeline import ShardPipeline
from penstock.tasks.roles.acting.shard_writer import RoundWriter
from penstock.tasks.roles.acting.tile import TileActor, act_together
from penstock.tasks.roles.acting.torch_tile import DeviceParams, TorchTileActor
from penstock.tasks.roles.learning.shard_feed import learned_columns

from ....support.stored.synthetic_shards import COLUMNS, store_shard
from ...conftest import first_stage_of
from ...roles.acting.test_shard_writer import Hints
from ...roles.acting.test_tile import StepCounter

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.refs import ShardRef
    from penstock.tasks.data.input.hand_over import HandedShard
    from penstock.tasks.runtime.run_context import RunContext

    from ...conftest import MakeContext

CPU = torch.device("cpu")
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "ppo-pendulum": {"environment": {"id": "Pendulum-v1"}},
    "dqn": {"algorithm": {"name": "dqn", "window_rows": 96, "warm_up_rows": 48, "minibatch_rows": 16}},
    "sac": {
        "environment": {"id": "Pendulum-v1"},
        "algorithm": {"name": "sac", "window_rows": 96, "warm_up_rows": 48, "minibatch_rows": 16},
    },
    "mappo": {"environment": {"id": "simple_spread_v3"}, "algorithm": {"name": "mappo"}},
    "compressed": {"shards": {"compression": {"observation": "zstd", "reward": "zstd"}}},
    "carry": {},
}


class Handing:
    """An actor of one tile that hands over what it plays, and stores it."""

    def __init__(self, context: RunContext, kind: str, lag: int = 0) -> None:
        self.context = context
        self.woken = 0
        self.rows = HandedRows(learned_columns(context), 0, lag, self._wake)
        self.actor = TorchTileActor(context, 0, CPU) if kind == "torch" else TileActor(context, 0)
        self.actor.start()
        hints: Any = Hints()
        self.writer = RoundWriter(first_stage_of("worker"), context, hints, {}, {}, handed=self.rows)
        self.params = DeviceParams(CPU).load(context.algorithm.init(3).params)

    def _wake(self) -> None:
        self.woken += 1

    def act(self, rounds: int = 1) -> None:
        """As an act task does, in inference mode; without waiting for a learner."""
        for _ in range(rounds):
            act_together([self.actor], 0, self.params, self.writer.buffers, self.writer.submit)

    def finish(self) -> None:
        self.writer.finish()
        self.writer.close()
        self.actor.close()

    def taken(self, round_: int) -> HandedShard:
        handed = self.rows.take(round_, 0)
        assert handed is not None
        return handed


def context_of(make_context: MakeContext, name: str) -> RunContext:
    context = make_context({**RUNS[name]})
    return replace(context, algorithm=StepCounter()) if name == "carry" else context


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in RUNS for kind in ("native", "torch") if (name, kind) != ("mappo", "torch")],
)
def test_handed_rows_are_those_of_the_stored_shard(make_context: MakeContext, name: str, kind: str):
    """Types, shapes, order of columns, bootstraps and description, of two rounds in a row, after both were played."""
    context = context_of(make_context, name)
    handing = Handing(context, kind, lag=1)
    handing.act(2)
    handing.finish()
    for round_ in range(2):
        handed = handing.taken(round_)
        ref = ref_of(handed.stored_as)
        shard = decode_shard(context.run.store.view(ref.name), context.columns, ref.name, ref.digest)
        wanted = {name: array for name, array in shard.columns.items() if name in learned_columns(context)}
        assert list(handed.trajectory.columns) == list(wanted)
        wanted |= {"/rows": shard.bootstrap_rows, "/after": shard.bootstrap_observation}
        found = {
            **handed.trajectory.columns,
            "/rows": handed.trajectory.bootstrap_rows,
            "/after": handed.trajectory.bootstrap_observation,
        }
        for column, array in wanted.items():
            tensor = torch.from_numpy(np.array(array))
            assert (found[column].dtype, found[column].shape) == (tensor.dtype, tensor.shape), column
            assert found[column].numpy().tobytes() == tensor.numpy().tobytes(), column
            assert found[column].is_contiguous()
            assert not found[column].is_inference(), "autograd refuses tensors of inference mode"
        for field in ("run_seed", "stage", "round", "tile", "steps", "envs", "min_policy_version", "follows_round"):
            assert getattr(handed.describe(), field) == getattr(shard.info, field)
        assert handed.describe().episodes.to_json() == shard.info.episodes.to_json()
        assert len(handed.describe().episodes) > 0
        assert handed.nbytes == sum(array.nbytes for array in wanted.values())


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_post_makes_the_same_batch_of_them(make_context: MakeContext, name: str):
    """Derived columns, such as advantages and returns over several steps, have the same bytes."""
    context = context_of(make_context, name)
    handing = Handing(context, "native")
    handing.act()
    handing.finish()
    handed = handing.taken(0)
    ref = ref_of(handed.stored_as)
    with (
        ShardPipeline([ref], context.run.store, columns=learned_columns(context)) as pipeline,
        torch.no_grad(),
    ):
        stored = pipeline.take()
        params = handing.params if context.algorithm.losses[0].group in handing.params else {}
        wanted = context.algorithm.post(params, stored.trajectory)
        found = context.algorithm.post(params, handed.trajectory)
    assert list(found) == list(wanted)
    for column, value in wanted.items():
        assert found[column].dtype == value.dtype
        assert found[column].numpy().tobytes() == value.numpy().tobytes(), column


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_a_round_that_is_changed_by_its_learner_is_stored_as_it_was_played(make_context: MakeContext, kind: str):
    """An algorithm's `post` may write to its rows: neither the shard nor the next round is made of that memory."""
    context = make_context()
    handing = Handing(context, kind)
    handing.act()
    handed = handing.taken(0)
    played = {name: tensor.clone() for name, tensor in handed.trajectory.columns.items()}
    for tensor in handed.trajectory.columns.values():
        tensor.fill_(1)
    handing.act()
    handing.finish()
    ref = ref_of(handed.stored_as)
    shard = decode_shard(context.run.store.view(ref.name), context.columns, ref.name, ref.digest)
    changed = Handing(context, kind)
    changed.act()
    changed.finish()
    for name, tensor in changed.taken(0).trajectory.columns.items():
        assert shard.columns[name].tobytes() == tensor.numpy().tobytes()
        assert torch.equal(tensor, played[name])
        assert (handed.trajectory.columns[name] == 1).all()


@pytest.mark.parametrize("lag", [0, 2])
def test_only_rounds_that_are_used_soon_are_held(make_context: MakeContext, lag: int):
    """While round r is learned, rounds r to r + lag + 1 are held, and a later one is left to storage."""
    context = make_context({"schedule": {"rounds_per_stage": 8}})
    handing = Handing(context, "native", lag)
    handing.act(6)
    held = [round_ for round_ in range(6) if handing.rows.holds(round_, 0)]
    assert held == list(range(lag + 2))
    assert handing.woken == len(held)
    handing.rows.begin_round(5)
    handing.act()
    handing.finish()
    assert [round_ for round_ in range(7) if handing.rows.holds(round_, 0)] == [6]
    assert handing.rows.take(0, 0) is None


def test_a_pipeline_passes_handed_rounds_on_in_their_place(make_context: MakeContext, tmp_path: Path):
    """Between shards that are read: the learner gets the very memory that was handed over, and nothing is read."""
    handing = Handing(make_context(), "torch")
    handing.act()
    handing.finish()
    handed = handing.taken(0)
    store = open_store(str(tmp_path / "others"))
    first, last = (store_shard(store, COLUMNS, 0, round_, 0, 16, 4) for round_ in (5, 7))
    with ShardPipeline([first, handed, last], store) as pipeline:
        assert pipeline.take().ref == first
        loaded = pipeline.take()
        assert loaded.trajectory is handed.trajectory
        assert loaded.ref == ref_of(handed.stored_as)
        loaded.release()
        assert pipeline.take().ref == last
        assert pipeline.tally().read_bytes == first.nbytes + last.nbytes
        assert handed.trajectory.columns, "releasing it in the pipeline takes nothing from its owner"


def test_a_shard_that_is_never_stored_fails_who_asks_for_it(make_context: MakeContext):
    """The learner's result names stored shards alone: it gets the writer's error instead of a name."""
    context = make_context()

    def refuse(version: int) -> None:
        raise ValueError(f"version {version} is contradicted")

    handing = Handing(context, "native")
    hints: Any = Hints()
    handing.writer = RoundWriter(first_stage_of("worker"), context, hints, {}, {}, handed=handing.rows, confirm=refuse)
    handing.act()
    with pytest.raises(ValueError, match="version 0 is contradicted"):
        ref_of(handing.taken(0).stored_as)
    handing.writer.close()
    assert context.run.store.list("shards/") == []
    assert context.run.store.list("states/") == []
    assert {str(error) for error in hints.failures} == {"version 0 is contradicted"}


def test_a_reference_that_is_known_needs_no_waiting():
    done: Future[ShardRef] = Future()
    ref: Any = object()
    done.set_result(ref)
    assert ref_of(done) is ref
