"""Says what a command that Ctrl-C has stopped leaves behind, and which command goes on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.flows.display.summary import next_steps
from penstock.storage.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

_RUN_STOPPED = (
    "; nothing is committed yet: give the same command again, or `penstock resume RUN` if it says that there is the run"
)
_RESUMED = "; what is committed is intact, `penstock resume RUN` goes on"
_REPEATED = "; the same command continues it"
_NOTHING_LEFT = "; nothing of it is left"
_NOTHING_CHANGED = "; nothing was changed"
_AFTER_STOP = {
    **dict.fromkeys(("train", "replay"), _RUN_STOPPED),
    **dict.fromkeys(("resume", "extend"), _RESUMED),
    **dict.fromkeys(("copy", "fork", "gc", "import", "floorplan place"), _REPEATED),
    **dict.fromkeys(("export", "report", "floorplan", "play"), _NOTHING_LEFT),
    **dict.fromkeys(("verify", "evaluate", "simulate"), _NOTHING_CHANGED),
}
"""By command, or by its first two words, the end of the message after Ctrl-C; a run that has begun has its own."""

_STORING = {"--follow", "--repair"}
"""Options with which such a command does change something."""


def after_stop(arguments: Sequence[str], end: BaseException) -> str:
    """Return the end of the message after Ctrl-C; empty if there is nothing to say.

    Args:
        arguments: of the command line, without the program.
        end: what has ended the command; the run that it drove is known by the interrupt that caused it.
    """
    words = [word for word in arguments if not word.startswith("-")]
    after = _AFTER_STOP.get(" ".join(words[:2]), _AFTER_STOP.get("".join(words[:1]), ""))
    if after == _NOTHING_CHANGED and _STORING & set(arguments):
        after = _REPEATED
    return _after_run(end) or after


def _after_run(end: BaseException) -> str:
    """Return the end of the message for a run that had begun when Ctrl-C stopped it; empty if none had."""
    error: BaseException | None = end
    while error is not None:
        stopped = getattr(error, "stopped_run", None)
        if isinstance(error, KeyboardInterrupt) and stopped is not None:
            run, store = stopped
            resume = next_steps(run.name, store, finished=False)[0]
            with suppress(PenstockError):
                if (newest := run.newest()) is not None:
                    if newest.finished:
                        return f"; the run is finished ({newest.finished})"
                    return f"; the last commit is intact, `{resume}` resumes from it"
            return f"; nothing is committed yet, `{resume}` starts it again"
        error = error.__cause__ or error.__context__
    return ""
