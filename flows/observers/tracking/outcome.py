"""Makes report and clip of a finished run in a process of its own: playing an episode takes torch and some memory."""

from __future__ import annotations

import atexit
import io
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.storage.errors import PenstockError
from penstock.storage.runs.run import store_option

_REPORT, _CLIP = "report.html", "clip.gif"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Files about a finished run."""

    report: bytes
    """HTML file."""
    clip: bytes | None
    """Animated GIF of an episode; None where the environment can't be drawn."""


class OutcomeMaker:
    """Makes a run's outcome once, for all of its trackers.

    Args:
        limit_seconds: longest duration.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._lock = threading.Lock()
        self._made: Outcome | None = None

    def make(self, store: str, run: str) -> Outcome:
        """Return report and clip of a run.

        Raises:
            PenstockError: it took too long, or could not be made.
        """
        with self._lock, TemporaryDirectory() as folder:
            if self._made is None:
                _run_here(store, run, folder, self._limit_seconds)
                clip = Path(folder) / _CLIP
                self._made = Outcome(
                    (Path(folder) / _REPORT).read_bytes(), clip.read_bytes() if clip.exists() else None
                )
            return self._made


def _run_here(store: str, run: str, folder: str, limit_seconds: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, store, run, folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The thread that waits for it is left behind where the flow's process ends first.
    atexit.register(process.kill)
    try:
        _, said = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise PenstockError(
            f"the report of run '{run}' took longer than {limit_seconds:g} s; `penstock report "
            f"{run}{store_option(store)}` makes it"
        ) from None
    finally:
        atexit.unregister(process.kill)
    if process.returncode:
        reason = (said.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        raise PenstockError(f"the report of run '{run}' could not be made: {reason}")


def write_outcome(store: str, name: str, folder: Path) -> None:
    """Write `report.html` and, where an episode can be drawn, `clip.gif`; errors as `penstock report`."""
    from penstock.flows.report.page import render  # noqa: PLC0415  (plotly, which the flow's process does not need)
    from penstock.flows.report.pictures import pictures_of  # noqa: PLC0415
    from penstock.storage.runs.run import RunFolder  # noqa: PLC0415
    from penstock.storage.stores.open import open_store  # noqa: PLC0415
    from penstock.tasks.analysis.history import read_history  # noqa: PLC0415

    history = read_history(RunFolder(open_store(store), name))
    pictures = pictures_of(history, clips=True)
    (folder / _REPORT).write_text(render([history], [pictures]), encoding="utf-8")
    if pictures.clip is not None:
        (folder / _CLIP).write_bytes(animated(pictures.clip.frames, pictures.clip.frame_seconds))


def animated(frames: tuple[bytes, ...], frame_seconds: float) -> bytes:
    """Return pictures as one animated GIF."""
    from PIL import Image  # noqa: PLC0415  (an extra)

    images = [Image.open(io.BytesIO(frame)).convert("RGB") for frame in frames]
    data = io.BytesIO()
    # A GIF counts in hundredths of a second.
    duration_milliseconds = max(20, round(100 * frame_seconds) * 10)
    images[0].save(
        data, "GIF", save_all=True, append_images=images[1:], duration=duration_milliseconds, loop=0, optimize=False
    )
    return data.getvalue()


if __name__ == "__main__":
    # Frames are drawn into memory: without this, SDL looks for a screen.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    write_outcome(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
