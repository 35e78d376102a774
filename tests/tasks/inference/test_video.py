"""A video lasts as long as what it shows."""

from pathlib import Path

import numpy as np
import pytest

from penstock.tasks.inference.episodes import Picture
from penstock.tasks.inference.video import video_file

imageio = pytest.importorskip("imageio.v3")


@pytest.mark.parametrize("per_second", [4.0, 30.0, 50.0, 60.0, 125.0])
def test_a_gif_is_as_fast_as_its_environment(tmp_path: Path, per_second: float):
    """It can show fifty pictures a second: of more, some are left out. Delays are hundredths of a second."""
    path, count = tmp_path / "clip.gif", 120
    with video_file(path) as file:
        for number in range(count):
            pixels = np.full((16, 16, 3), 2 * number, np.uint8)  # or equal pictures would be joined
            assert file.show(Picture(pixels, per_second))
    shown = len(imageio.imread(path))
    delay_ms = imageio.immeta(path)["duration"]
    assert delay_ms >= 20
    assert delay_ms % 10 == 0
    seconds = count / per_second
    near = 0.1 if per_second == 30.0 else 0.02  # 33 ms are 3 hundredths, 30 ms
    assert shown * delay_ms / 1000 == pytest.approx(seconds, rel=near)
