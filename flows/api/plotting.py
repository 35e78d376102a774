"""Draws a run's returns with matplotlib, which is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from penstock.flows.display.summary import steps_axis
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes


def plot_returns(title: str, history: pa.Table, evaluations: pa.Table, ax: Axes | None, *, replay: bool) -> Axes:
    """Draw the mean return of each stage's episodes, and of each evaluation by the run with a band from least to most.

    Args:
        title: of the axes, and of the curves where several runs share them.
        history: as `Run.history`.
        evaluations: as `Run.evaluations`.
        ax: where to draw; None creates a figure.
        replay: True if the steps are stored ones that were learned from.

    Raises:
        ConfigError: matplotlib is not installed, or `ax` is something else.
    """
    try:
        import matplotlib.pyplot as plt
        from matplotlib.axes import Axes
    except ImportError as error:
        raise ConfigError(
            "Run.plot needs matplotlib, which is not installed: `pip install 'penstock-rl[analysis]'`"
        ) from error
    if ax is not None and not isinstance(ax, Axes):
        raise ConfigError(f"ax is {ax!r}, expected matplotlib's Axes, such as the result of another plot()")
    if ax is None:
        _, ax = plt.subplots()
        ax.set_title(title)
        prefix = ""
    else:
        prefix = f"{title}: "
    acted = history.filter(pc.field("return").is_valid())
    steps, returns = (acted[name].to_numpy() for name in ("env_steps", "return"))
    (line,) = ax.plot(steps, returns, marker=".", label=f"{prefix}training")
    # Those of `penstock evaluate` have other numbers of episodes and other seeds.
    own = evaluations.filter(pc.field("seeds").is_null())
    if len(own):
        columns = ("env_steps", "mean_return", "min_return", "max_return")
        steps, mean, least, most = (own[name].to_numpy() for name in columns)
        (line,) = ax.plot(steps, mean, marker=".", label=f"{prefix}evaluation")
        ax.fill_between(steps, least, most, color=line.get_color(), alpha=0.2, linewidth=0)
    ax.set_xlabel(steps_axis([replay, *(kind for kind in (False, True) if steps_axis([kind]) in ax.get_xlabel())]))
    ax.set_ylabel("return")
    ax.legend()
    return ax
