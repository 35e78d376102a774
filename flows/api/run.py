"""Reads a stored run in Python: its settings, history, evaluations, snapshots, episodes and policies.

Neither Prefect nor Dask is imported, and torch only for a policy. Nothing is written.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from penstock.flows.display.summary import driver_line, outcome, round_return
from penstock.storage.errors import ConfigError, PenstockError
from penstock.storage.runs.lease import driver
from penstock.storage.runs.run import open_run
from penstock.tasks.analysis.history import read_stages
from penstock.tasks.analysis.tables import episode_table, evaluation_table, snapshot_table, stage_table
from penstock.tasks.setup.config.replay import build_stored_config

if TYPE_CHECKING:
    import os

    import pandas as pd
    import pyarrow as pa
    from matplotlib.axes import Axes

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.analysis.history import Stage
    from penstock.tasks.inference.policy import Policy
    from penstock.tasks.setup.config.run import RunConfig

TableName: TypeAlias = Literal["history", "evaluations", "snapshots", "episodes"]
TABLES: tuple[TableName, ...] = ("history", "evaluations", "snapshots", "episodes")

_SHOWN_STAGES = 10
_SHOWN_COLUMNS = ("stage", "env_steps", "return", "evaluation", "seconds")


class Run:
    """Reads a run, also while it trains and from a store that can only be read.

    Each access reads what was committed since the last one. Tables are Arrow's: `to_pylist`, `to_pandas`, `column`.

    Args:
        run: folder or s3:// address of the run, such as `runs/cartpole-1`; or its name, which is looked up in `store`.
        store: folder or s3:// address that holds the run, if `run` is its name; default `runs`.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: the address names no run in a store.
        CorruptObjectError: `run.json` was altered.
    """

    def __init__(self, run: str | os.PathLike[str], store: str | os.PathLike[str] | None = None) -> None:
        self._folder = open_run(run, store)
        self._stages: list[Stage] = []
        self._episodes: list[pa.Table] = []
        """A table for each stage."""

    def __repr__(self) -> str:
        return f"penstock.Run({self.name!r}, store={self.store!r})"

    def _repr_html_(self) -> str:
        """Return the outcome and the newest stages, for a notebook."""
        try:
            lines, rows = [self.outcome], self.history.slice(max(0, len(self._stages) - _SHOWN_STAGES)).to_pylist()
        except PenstockError as error:
            lines, rows = [str(error)], []
        title = f"<b>run {html.escape(self.name)}</b> in {html.escape(self.store)}: "
        text = title + "<br>".join(html.escape(line) for line in lines)
        if not rows:
            return f"<p>{text}</p>"
        head = "".join(f"<th>{column.replace('_', ' ')}</th>" for column in _SHOWN_COLUMNS)
        body = "".join(f"<tr>{''.join(f'<td>{_cell(row[name])}</td>' for name in _SHOWN_COLUMNS)}</tr>" for row in rows)
        return f"<p>{text}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    @property
    def name(self) -> str:
        """Return the run's name."""
        return self._folder.name

    @property
    def store(self) -> str:
        """Return the address of the store that holds the run."""
        return self._folder.root.url

    @property
    def folder(self) -> RunFolder:
        """Return the run's folder, from which commits and objects are read."""
        return self._folder

    @property
    def config(self) -> RunConfig:
        """Return the run's settings: a `TrainConfig`, or a replay's.

        `penstock.train(run.config, name=..., seed=...)` starts another run with them.
        """
        stored = self._folder.load("config")["config"]
        return build_stored_config(stored, {"name": self.name, "store": self.store})

    @property
    def outcome(self) -> str:
        """Return one line that says how far the run is, and which process drives it if one does."""
        newest = self._folder.newest()
        lease = None if newest is not None and newest.finished else driver(self._folder.store)
        return outcome(newest, replay=self._is_replay) + (f", {driver_line(lease)}" if lease else "")

    @property
    def finished(self) -> str | None:
        """Return why the run ended; None if it continues, or can."""
        newest = self._folder.newest()
        return newest.finished if newest else None

    @property
    def history(self) -> pa.Table:
        """Return a row for each committed stage.

        Returns:
            `stage`; `env_steps`, `version` and `episodes` after it, counted since the run began, in a replay the stored
            steps learned from; `return`, the mean of the episodes that ended in it; `evaluation`, the mean return of
            its evaluation; `seconds`, its duration, the wait for Prefect's flow run included; `steps_per_second`,
            without that wait; `wait_share`, the share of the learners' time that they waited; then a column for each
            of the algorithm's metrics, the mean of the stage. Missing values are null.

        Raises:
            CorruptObjectError: a commit was altered.
            StoreError: the store can't be read.
        """
        return stage_table(self._read_stages())

    @property
    def evaluations(self) -> pa.Table:
        """Return a row for each evaluation, made by the run or by `penstock.evaluate`, by version; errors as `history`.

        Returns:
            `version`, `stage`, `env_steps`; `mean_return`, `min_return`, `max_return`, `mean_length`; `episodes`;
            `seeds`, the key of the episodes' seeds, which is null for the run's own evaluations.
        """
        return evaluation_table(self._folder, self._read_commits())

    @property
    def snapshots(self) -> pa.Table:
        """Return a row for each snapshot that a commit names, by version; errors as `history`.

        Returns:
            `version`, which `policy` takes; `stage`, `env_steps`, `return`, `evaluation`; `nbytes`; `stored`, false if
            the snapshot was removed; `name` of its object.
        """
        return snapshot_table(self._folder, self._read_commits())

    @property
    def episodes(self) -> pa.Table:
        """Return a row for each episode that ended in a committed stage, from the indices of its shards.

        This reads the head of each shard, once. Shards that `penstock gc` has dropped are left out.

        Returns:
            `stage`, `round`, `env_id`, `episode_id`, `length` in steps, `return`, `end` (`terminated`, `truncated` or
            `both`), `first_policy_version`, `last_policy_version`.

        Raises:
            CorruptObjectError: a commit or a shard was altered.
            StoreError: the store can't be read.
        """
        import pyarrow as pa

        commits = self._read_commits()
        del self._episodes[len(commits) :]
        self._episodes += [episode_table(self._folder, [commit]) for commit in commits[len(self._episodes) :]]
        return pa.concat_tables([episode_table(self._folder, []), *self._episodes])

    def policy(
        self,
        version: int | Literal["newest", "best"] = "newest",
        *,
        device: str = "cpu",
        seed: int = 0,
        trust: bool = False,
    ) -> Policy:
        """Load a policy of the run, to act with it; arguments and errors as `penstock.load_policy`."""
        from penstock.tasks.inference.loading import load_policy

        return load_policy(self.name, version, store=self.store, device=device, seed=seed, trust=trust)

    def to_pandas(self, table: TableName = "history") -> pd.DataFrame:
        """Return one of the run's tables as a data frame of pandas.

        Args:
            table: `history`, `evaluations`, `snapshots` or `episodes`.

        Raises:
            ConfigError: there is no such table, or pandas is not installed.
        """
        if table not in TABLES:
            raise ConfigError(f"table {table!r}: expected {', '.join(map(repr, TABLES))}")
        try:
            import pandas as pd  # noqa: F401  (an extra)
        except ImportError as error:
            raise ConfigError(
                "Run.to_pandas needs pandas, which is not installed: `pip install 'penstock-rl[analysis]'`. The "
                "tables themselves, such as Run.history, need no other package"
            ) from error
        return cast("pd.DataFrame", getattr(self, table).to_pandas())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the returns over the steps: those of training, and those of evaluations with a band.

        The band reaches from the least return of an evaluation's episodes to the greatest.

        Args:
            ax: where to draw; default: a new figure.

        Returns:
            The axes.

        Raises:
            ConfigError: matplotlib is not installed.
            StoreError: the store can't be read.
        """
        from penstock.flows.api.plotting import plot_returns

        return plot_returns(self.name, self.history, self.evaluations, ax, replay=self._is_replay)

    @property
    def _is_replay(self) -> bool:
        return "source" in self._folder.load("config")["config"]

    def _read_commits(self) -> list[Commit]:
        return [stage.commit for stage in self._read_stages()]

    def _read_stages(self) -> list[Stage]:
        """Return all committed stages; only those since the last call are read."""
        newest = self._folder.log.newest()
        committed = newest.stage + 1 if newest else 0
        # Each commit names the one before, so an equal one follows equal ones. Another one is there where commits were
        # given up, or where another run has taken the name.
        if (last := len(self._stages) - 1) >= 0 and (
            committed <= last or self._folder.log.read(last) != self._stages[last].commit
        ):
            self._stages, self._episodes = [], []
        if self._stages and self._stages[-1].timings is None:  # they are written after the commit
            self._stages.pop()
        self._stages += read_stages(self._folder, range(len(self._stages), committed))
        return self._stages


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{round_return(value):,}"
