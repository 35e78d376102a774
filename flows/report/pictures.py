"""Pictures of a run's policy for its report: an episode to watch, or the best placements of a floorplan."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from penstock.flows.report.page import Pictures
from penstock.storage.error_places import describe_error
from penstock.storage.errors import PenstockError
from penstock.tasks.setup.config.environment import FLOORPLAN

if TYPE_CHECKING:
    from penstock.storage.runs.commit_schema import Commit
    from penstock.tasks.analysis.history import History

_MOST_PLACEMENTS = 6
_PICTURE_WIDTH_PIXELS = 420


def pictures_of(history: History, *, clips: bool) -> Pictures:
    """Return pictures of a run; where it can't be drawn, the page shows the reason and is otherwise complete."""
    newest = history.newest
    if not clips or newest is None or not newest.snapshots:
        return Pictures()
    try:
        if history.config["environment"]["id"] == FLOORPLAN:
            return Pictures(drawn=_placements(history))
        from penstock.tasks.analysis.recordings import play  # noqa: PLC0415  (imports torch)

        evaluated = [stage.commit for stage in history.stages if stage.commit.evaluation]
        kept = [commit for commit in (newest, *evaluated[-1:]) if _is_kept(history, commit)]
        if not kept:
            return Pictures(missing="No clip: the newest snapshot was removed.")
        return Pictures(clip=play(history.run, kept[-1]))
    except PenstockError as error:
        return Pictures(missing=str(error))
    except Exception as error:  # noqa: BLE001  (whatever the environment raises that plays the clip)
        return Pictures(missing=f"No clip: {describe_error(error)}")


def _is_kept(history: History, commit: Commit) -> bool:
    return bool(commit.snapshots) and history.run.store.exists(commit.snapshots[-1].name)


def _placements(history: History) -> tuple[tuple[str, bytes], ...]:
    """Draw the best macro placement until each of the newest stages that found a better one."""
    from penstock.native.floorplan import draw  # noqa: PLC0415
    from penstock.tasks.analysis.best_placements import best_placements, placed_again  # noqa: PLC0415  (the same)

    drawn = []
    with TemporaryDirectory() as folder:
        picture = Path(folder) / "placement.png"
        for found in best_placements(history.run, each_stage=True)[-_MOST_PLACEMENTS:]:
            draw(placed_again(history.run, found), picture, _PICTURE_WIDTH_PIXELS)
            caption = f"stage {found.stage}, block {found.block}: cost {-found.episode_return:.4f}, the best until then"
            drawn.append((caption, picture.read_bytes()))
    return tuple(drawn)
