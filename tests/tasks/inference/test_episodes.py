"""Episodes are played in the run's environment and drawn, into a file that is whole or absent, or into a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import imageio.v3 as iio
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from penstock.storage.errors import ConfigError
from penstock.tasks.analysis.evaluation import evaluate_snapshot
from penstock.tasks.inference.episodes import Episode, Picture, play_episodes
from penstock.tasks.inference.video import video_file, window

from .support import commit, policy_of

if TYPE_CHECKING:
    from pathlib import Path

    from ..conftest import MakeContext

FAILING = "test/Failing-v0"
FRAME = Picture(np.zeros((35, 41), np.uint8), 30.0)
"""Grey, with odd sides."""


def test_greedy_episodes_are_those_of_an_evaluation(make_context: MakeContext):
    """The same seeds give the same returns and lengths; an episode can be cut, and sampled ones differ in actions."""
    context = make_context({"environment": {"max_episode_steps": 60}})
    (ref,) = commit(context, None)
    policy = policy_of(make_context({"environment": {"max_episode_steps": 60}}, "other"), version=1)
    played = [each for each in play_episodes(policy, 3, seed=9) if isinstance(each, Episode)]
    expected = evaluate_snapshot(context, context.run.store, ref, 3, 9)
    assert np.mean([each.episode_return for each in played]) == expected["mean_return"]
    assert np.mean([each.steps for each in played]) == expected["mean_length"]
    cut = list(play_episodes(policy, 1, seed=9, max_steps=4))
    assert [type(each) for each in cut] == [Picture] * 4 + [Episode]
    assert (cut[-1].steps, cut[-1].ended) == (4, False)
    assert cut[0].pixels.shape == (400, 600, 3)
    assert not np.array_equal(cut[0].pixels, cut[3].pixels)


def test_episodes_have_the_values_of_an_evaluations_environments(make_context: MakeContext):
    """With several values of a setting, episode i has value i modulo their number, as environment i has there."""
    values = {
        "environment": {"max_episode_steps": 60, "settings": {"gravity": [9.8, 200.0, 900.0]}},
        "algorithm": {"hidden": [8]},
    }
    context = make_context(values)
    (ref,) = commit(context, None)
    policy = policy_of(make_context(values, "other"), version=1)
    played = [each for each in play_episodes(policy, 5, seed=9) if isinstance(each, Episode)]
    expected = evaluate_snapshot(context, context.run.store, ref, 5, 9)
    assert np.mean([each.episode_return for each in played]) == expected["mean_return"]
    assert np.mean([each.steps for each in played]) == expected["mean_length"]
    assert len({each.steps for each in played}) > 1


def test_what_cannot_be_drawn_is_refused(make_context: MakeContext):
    """The message names the environment."""
    policy = policy_of(make_context({"environment": {"id": "PositionOnlyCartPole-v0"}, "algorithm": {"name": "ppo"}}))
    with pytest.raises(ConfigError, match="no renderer for PositionOnlyCartPole-v0, expected one with the render_mode"):
        list(play_episodes(policy, 1, seed=0))


class Failing(gymnasium.Env[Any, Any]):
    """Observes a number that is none from its third step on."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.array([0, np.nan if self.steps > 2 else 0], np.float32), 0.0, False, False, {}

    def render(self) -> Any:
        return np.zeros((32, 32, 3), np.uint8)


def test_what_the_policy_refuses_ends_the_episode_with_one_error(make_context: MakeContext):
    """It names episode, environment and step, and what was observed."""
    if FAILING not in gymnasium.registry:
        gymnasium.register(FAILING, Failing)
    policy = policy_of(make_context({"environment": {"id": FAILING}}))
    shown = play_episodes(policy, 1, seed=0)
    assert [type(next(shown)) for _ in range(3)] == [Picture] * 3
    with pytest.raises(ConfigError, match=rf"episode 1 of {FAILING} can't go on after 3 steps: .* with nan \(row 0, "):
        list(shown)


@pytest.mark.parametrize("ending", ["gif", "mp4"])
def test_a_video_is_whole_or_absent(tmp_path: Path, ending: str):
    """An error leaves the file of before, and nothing else in the folder."""
    path = tmp_path / f"video.{ending}"
    with video_file(path) as video:
        for grey in (0, 80, 160):
            assert video.show(Picture(np.full_like(FRAME.pixels, grey), 30.0))
    if ending == "gif":
        frames = iio.imread(path)
        assert frames.shape == (3, 36, 42, 3)
        assert 75 <= np.median(frames[1]) <= 85
    else:
        assert imageio_ffmpeg.count_frames_and_secs(str(path)) == (3, pytest.approx(0.1, abs=0.01))
    before = path.read_bytes()

    def stopped() -> None:
        with video_file(path) as video:
            video.show(FRAME)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_window_shows_pictures_until_it_is_closed(monkeypatch: pytest.MonkeyPatch):
    """A closed window wants no more; without a display the message names the alternative."""
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with window("test") as screen:
        assert screen.show(FRAME)
        assert pygame.display.get_surface().get_size() == (41, 35)
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        assert not screen.show(FRAME)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="no display here"), window("test"):
        pass
