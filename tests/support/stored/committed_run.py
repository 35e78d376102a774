"""A run with commits and timings, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.digest import digest
from penstock.storage.refs import Ref, checkpoint_name
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.timings import LearnTimes, StageTimings, encode_timings, timings_name
from penstock.storage.stores.open import open_store
from penstock.tasks.setup.config.loading import build_config

if TYPE_CHECKING:
    from pathlib import Path


_OTHERS = {"made_with": {}, "promise": {"same_bytes": True, "because": "", "where": ""}}


class CommittedRun:
    """A run in `<folder>/runs`; its stages have 100 steps each, a loss and, unless it is None, an evaluation."""

    def __init__(self, folder: Path, name: str = "small", created: str = "2026-11-24T10:00:00+00:00") -> None:
        self.folder = RunFolder(open_store(str(folder / "runs")), name)
        config = build_config({"name": name}).model_dump(mode="json", exclude={"store", "cluster"})
        self.folder.create({"config": config, "created": created, "identity": {"seed": 1}, **_OTHERS})
        self.committed: list[tuple[Commit, StageTimings]] = []

    @property
    def newest(self) -> Commit | None:
        return self.committed[-1][0] if self.committed else None

    def commit(self, *returns: float | None, finished: str | None = None) -> list[tuple[Commit, StageTimings]]:
        """Commit one stage for each mean return; return them with their timings."""
        log, made = self.folder.log, []
        for value in returns:
            stage = len(self.committed)
            evaluation = {"version": stage + 1, "mean_return": value, "episodes": 4}
            commit = Commit(
                stage=stage, parent=log.digest_of(stage - 1) if stage else self.folder.genesis(),
                rounds=(stage, stage), version=stage + 1, env_steps=100 * (stage + 1), episodes=stage, shards=(),
                states=(), snapshots=(), checkpoint=Ref(checkpoint_name(stage, digest(b"")), digest(b""), 0),
                metrics={"loss": 1.0 / (stage + 1), "episode_return": float(stage)},
                evaluation=None if value is None else evaluation, finished=finished,
            )  # fmt: skip
            log.append(commit)
            learn = LearnTimes(member="learn-0", env_steps=100, learn_seconds=1.0, wait_seconds=1.0)
            timings = StageTimings(
                stage=stage, started_at=1_000_000.0 + stage, stage_seconds=0.5, act=(), learn=(learn,)
            )
            self.folder.store.write(timings_name(stage, 1), [encode_timings(timings)])
            made.append((commit, timings))
            self.committed.append(made[-1])
        return made
