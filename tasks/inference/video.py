"""Writes pictures as a video file, or shows them in a window, at the speed of the environment."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock.tasks.inference.episodes import Picture

ENDINGS = (".mp4", ".gif")
_GIF_UNIT_SECONDS, _MOST_GIF_PICTURES_PER_SECOND = 0.01, 50.0
"""A GIF counts delays in hundredths of a second, and programs show a delay of 0 or 1 of them as 10."""
_MISSING = "a package is missing; `pip install 'penstock-rl[video]'` installs it"


class Screen(Protocol):
    """A place for pictures."""

    def show(self, picture: Picture) -> bool:
        """Add a picture; return False if no more are wanted."""


@contextmanager
def video_file(path: Path) -> Iterator[Screen]:
    """Write pictures to a file, which appears, or is replaced, when the context ends without an error.

    Args:
        path: ends in .mp4 (H.264) or .gif.

    Raises:
        ConfigError: another ending, no such folder, or a package is missing.
    """
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--video {path}: the ending is {path.suffix!r}, expected {' or '.join(ENDINGS)}")
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--video {path}: it is a folder, or its folder does not exist; name a file in a folder")
    try:
        import imageio.v2  # noqa: F401, PLC0415  (an extra)

        if path.suffix.lower() == ".mp4":
            import imageio_ffmpeg  # noqa: F401, PLC0415  (the same)
    except ImportError as error:
        raise ConfigError(f"--video {path}: {_MISSING}") from error
    try:
        folder = TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent)
    except OSError as error:
        raise ConfigError(f"--video {path}: its folder can't be written ({error.strerror})") from error
    with folder as name:
        file = _File(Path(name) / path.name)
        try:
            yield file
        finally:
            file.close()
        if file.written:
            file.path.replace(path)


class _File:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = False
        self._is_gif = path.suffix.lower() == ".gif"
        self._writer: Any = None
        self._shown = 0

    def show(self, picture: Picture) -> bool:
        if self._writer is None:
            self._writer = self._open(picture.per_second)
        self._shown += 1
        if self._is_gif and not self._is_due(self._shown - 1, picture.per_second):
            return True
        self._writer.append_data(_even(_coloured(picture.pixels)))
        self.written = True
        return True

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    @staticmethod
    def _is_due(index: int, per_second: float) -> bool:
        """Return whether a GIF has this picture: pictures are left out where there are too many in a second."""
        share = min(1.0, _MOST_GIF_PICTURES_PER_SECOND / per_second)
        return index == 0 or int(index * share) > int((index - 1) * share)

    def _open(self, per_second: float) -> Any:
        import imageio.v2 as imageio  # noqa: PLC0415  (an extra)

        if self._is_gif:
            delay_seconds = max(1.0 / per_second, 1.0 / _MOST_GIF_PICTURES_PER_SECOND)
            units = round(delay_seconds / _GIF_UNIT_SECONDS)
            return imageio.get_writer(self.path, mode="I", duration=1000.0 * _GIF_UNIT_SECONDS * units, loop=0)
        return imageio.get_writer(self.path, fps=per_second, codec="libx264", macro_block_size=2, quality=7)


@contextmanager
def window(title: str) -> Iterator[Screen]:
    """Show pictures in a window.

    Raises:
        ConfigError: there is no display, or pygame is missing.
    """
    drivers = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform == "linux" and not any(os.environ.get(name) for name in drivers):
        raise ConfigError("there is no display here (DISPLAY is not set): --video FILE.mp4 writes a video instead")
    try:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        import pygame  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ConfigError(f"a window: {_MISSING}") from error
    try:
        pygame.display.init()
        pygame.display.set_caption(title)
    except pygame.error as error:
        raise ConfigError(f"no window can be opened ({error}): --video FILE.mp4 writes a video instead") from error
    try:
        yield _Window(pygame)
    finally:
        pygame.display.quit()


class _Window:
    def __init__(self, pygame: Any) -> None:
        self._pygame = pygame
        self._surface: Any = None
        self._next = time.monotonic()

    def show(self, picture: Picture) -> bool:
        pygame, pixels = self._pygame, _coloured(picture.pixels)
        try:
            if self._surface is None:
                self._surface = pygame.display.set_mode(pixels.shape[1::-1])
            self._surface.blit(pygame.surfarray.make_surface(pixels.swapaxes(0, 1)), (0, 0))
            pygame.display.flip()
        except pygame.error as error:
            raise ConfigError(f"no window can be opened ({error}): --video FILE.mp4 writes a video instead") from error
        self._next = max(self._next + 1.0 / picture.per_second, time.monotonic())
        time.sleep(max(0.0, self._next - time.monotonic()))
        return all(event.type != pygame.QUIT for event in pygame.event.get())


def _coloured(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.repeat(pixels[..., None], 3, axis=-1) if pixels.ndim == 2 else pixels


def _even(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Repeat the last row or column of an odd number: H.264 halves the resolution of colours."""
    height, width = pixels.shape[:2]
    return np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
