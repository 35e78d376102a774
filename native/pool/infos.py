"""The infos of a pool's steps and resets, as `gymnasium.vector.VectorEnv` lays them out: arrays, each with its mask."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.native import _core


ArrayInfos: TypeAlias = "dict[str, NDArray[Any] | ArrayInfos]"
"""Infos of a pool in C++: arrays with a row for each environment, final infos and statistics nested once."""


_Report: TypeAlias = "tuple[str, slice | int, type[np.generic]]"
"""A member of the report: its name, its columns, and its dtype in infos."""


class StepExtras(Protocol):
    """The extras of a step: reports, and statistics of ended episodes."""

    @property
    def report(self) -> NDArray[np.float64]:
        """Return the reports `[rows, reports]`, float64, of the moment that was observed."""

    def ended(
        self, rows: NDArray[np.int64], /
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.int64], NDArray[Any], NDArray[np.float64]]:
        """Return which observations are a reset's; for `rows` return, length, last observation and last report."""


class PoolInfos:
    """Makes infos. Costs nothing in a step in which no episode ends, if the environment reports nothing."""

    def __init__(
        self,
        num_envs: int,
        reports: Sequence[tuple[str, int, bool]],
        reset_reports: int,
        autoreset_mode: AutoresetMode,
        record_episode_statistics: bool,
    ) -> None:
        # Gymnasium's masks are int8; `width` 0 is a single number.
        ends = np.cumsum([max(width, 1) for _, width, _ in reports], dtype=int).tolist()
        self._reports = tuple(
            (name, slice(end - width, end) if width else end - 1, np.int8 if is_mask else np.float64)
            for (name, width, is_mask), end in zip(reports, ends, strict=True)
        )
        self._report_size = ends[-1] if ends else 0
        self._reset_reports = reset_reports
        self._same_step = autoreset_mode == AutoresetMode.SAME_STEP
        self._statistics = record_episode_statistics
        self._started_seconds = np.zeros(num_envs)

    def after_reset(self, core: _core.Pool, mask: NDArray[np.bool_]) -> ArrayInfos:
        """Return the infos of a reset of the environments in `mask`."""
        infos: ArrayInfos = {}
        if self._statistics:
            self._started_seconds[mask] = time.perf_counter()
        if self._reset_reports:
            self._put(infos, self._reports[: self._reset_reports], core.report, mask)
        return infos

    def starts(self, environments: NDArray[np.int32]) -> None:
        """Episodes of these begin: their seconds count from now."""
        if self._statistics:
            self._started_seconds[environments] = time.perf_counter()

    def after_step(
        self,
        core: StepExtras,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        ended: int,
        environments: NDArray[np.int32] | None = None,
    ) -> ArrayInfos:
        """Return the infos of a step that ended `ended` episodes: a row for each of `environments`, by default all."""
        infos: ArrayInfos = {}
        if not ended and not self._reports:
            return infos
        over = terminated | truncated
        rows = np.flatnonzero(over)
        fresh, returns, lengths, final_observation, final_report = core.ended(rows)
        if self._reports:
            report = core.report
            self._put(infos, self._reports[: self._reset_reports], report, np.ones_like(fresh))
            if not fresh.all():
                self._put(infos, self._reports[self._reset_reports :], report, ~fresh)
        if ended and self._same_step:
            self._put_final(infos, rows, over, final_observation, final_report)
        if ended and self._statistics:
            stepped = rows if environments is None else environments[rows]
            infos |= {"episode": self._episode(len(over), rows, stepped, returns, lengths), "_episode": over.copy()}
        return infos

    def after_rows(
        self,
        environments: NDArray[np.int32],
        over: NDArray[np.bool_],
        report: NDArray[Any],
        returns: NDArray[Any],
        lengths: NDArray[Any],
    ) -> ArrayInfos:
        """Return the infos of a step of these environments without resets; all arguments have a row for each."""
        infos: ArrayInfos = {}
        self._put(infos, self._reports, report, np.ones_like(over))
        if self._statistics and over.any():
            now = time.perf_counter()
            seconds = np.where(over, np.round(now - self._started_seconds[environments], 6), 0.0)
            self._started_seconds[environments[over]] = now
            infos |= {"episode": {"r": returns, "l": lengths, "t": seconds}, "_episode": over}
        return infos

    def _put(
        self, infos: ArrayInfos, reports: Sequence[_Report], report: NDArray[Any], mask: NDArray[np.bool_]
    ) -> None:
        for name, columns, dtype in reports:
            shown = mask[:, None] if isinstance(columns, slice) else mask
            infos[name] = np.where(shown, report[:, columns], 0.0).astype(dtype, copy=False)
            infos[f"_{name}"] = mask.copy()

    def _episode(
        self,
        count: int,
        rows: NDArray[np.int64],
        environments: NDArray[Any],
        returns: NDArray[np.float64],
        lengths: NDArray[np.int64],
    ) -> ArrayInfos:
        """Return each episode's return, length and seconds since the end of the previous episode or the reset."""
        r, t, now = np.zeros(count), np.zeros(count), time.perf_counter()
        l = np.zeros(count, dtype=np.int64)  # noqa: E741
        r[rows], l[rows], t[rows] = returns, lengths, np.round(now - self._started_seconds[environments], 6)
        self._started_seconds[environments] = now
        return {"r": r, "l": l, "t": t}

    def _put_final(
        self,
        infos: ArrayInfos,
        rows: NDArray[np.int64],
        over: NDArray[np.bool_],
        observation: NDArray[Any],
        report: NDArray[np.float64],
    ) -> None:
        final_obs = np.full(len(over), None, dtype=object)
        for row, last in zip(rows.tolist(), observation, strict=True):
            final_obs[row] = last
        final_info: ArrayInfos = {}
        everything = np.zeros((len(over), self._report_size))
        everything[rows] = report
        self._put(final_info, self._reports, everything, over)
        infos |= {"final_obs": final_obs, "_final_obs": over, "final_info": final_info, "_final_info": over.copy()}
