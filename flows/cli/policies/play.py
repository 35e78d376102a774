"""`penstock play`: shows a run's episodes in a window, or writes them as a video."""

from __future__ import annotations

import json
import os
from pathlib import Path  # noqa: TC003  (typer reads annotations)
from typing import Annotated

import typer

from penstock.flows.cli.training import AsJson, Store, Trust  # noqa: TC001  (the same)


def play(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    video: Annotated[
        Path | None, typer.Option(help="Video to write, .mp4 or .gif; an existing one is replaced.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, one after the other.")] = 3,
    version: Annotated[str, typer.Option(help="newest, best, or a number.")] = "newest",
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="The set of seeds, as --key of evaluate.")] = 0,
    sampled: Annotated[bool, typer.Option("--sampled", help="Sample actions; otherwise the greedy ones.")] = False,
    max_steps: Annotated[int, typer.Option(min=1, help="An episode is cut after so many steps.")] = 10_000,
    trust: Trust = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's episodes, in a window or as a video.

    The return and length of each are printed. The environment has the settings of the run. Closing the window ends
    the command.
    """
    from dataclasses import asdict

    from penstock.tasks.inference.episodes import Episode, play_episodes
    from penstock.tasks.inference.finding import parse_version
    from penstock.tasks.inference.loading import load_policy
    from penstock.tasks.inference.video import video_file, window

    if video:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # or pygame complains that there is no display to find
    wanted, played = parse_version(version), []
    with video_file(video) if video else window(f"penstock: {run}") as screen:
        policy = load_policy(run, wanted, store=store, seed=seed, trust=trust)
        shown = play_episodes(policy, episodes, seed=seed, deterministic=not sampled, max_steps=max_steps)
        for each in shown:
            if not isinstance(each, Episode):
                if not screen.show(each):
                    break
                continue
            played.append(each)
            if not as_json:
                cut = "" if each.ended else f", cut by --max-steps {max_steps}"
                typer.echo(f"episode {each.number + 1}: return {each.episode_return:g}, {each.steps} steps{cut}")
        shown.close()
    if as_json:
        found = [asdict(each) for each in played]
        about = {"run": run, "version": policy.origin.version, "video": video and str(video), "episodes": found}
        typer.echo(json.dumps(about, indent=2))
    elif video:
        typer.echo(f"version {policy.origin.version} of run {run} in {video}")
