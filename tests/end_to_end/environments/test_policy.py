"""A trained run's policy is exported and loaded by what a user types."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from typing import TYPE_CHECKING

import imageio.v3 as iio
import numpy as np
import onnxruntime
import pytest
import torch

import penstock

from ...support.processes.commands import wait_until
from ..conftest import BRIEF

if TYPE_CHECKING:
    from pathlib import Path

    from ..conftest import Bench, References

SLOW = pytest.mark.slow


@pytest.mark.slow
def test_an_exported_policy_and_a_loaded_one_agree(bench: Bench, references: References, tmp_path: Path):
    """`penstock export --to onnx` gives the actions of `load_policy`, and changes nothing in the run."""
    run = references.run(BRIEF)
    before = run.content()
    path = tmp_path / "policy.onnx"
    said = bench.penstock("export", run.name, str(path), "--to", "onnx", "--json", "--store", run.url).succeed()
    about = json.loads(said)
    policy = penstock.load_policy(run.name, store=run.url)
    assert about["origin"]["version"] == policy.origin.version
    observation = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (action,) = session.run(None, {"observation": observation, "noise": np.zeros((1000, 2), np.float32)})
    np.testing.assert_array_equal(action, policy.act(observation))
    assert 0 < action.mean() < 1, "both actions occur"
    assert run.content() == before


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["--to", "tflite"], ["tflite", "'onnx', 'torch', 'minari' or 'tensorboard'"]),
        (["--to", "onnx", "--version", "last"], ["last", "newest", "best"]),
        (["--to", "torch", "--version", "99"], ["no version 99"]),
        (["--version", "3"], ["--version 3", "only policies have versions"]),
    ],
    ids=" ".join,
)
def test_mistakes_are_one_line(
    bench: Bench, references: References, tmp_path: Path, arguments: list[str], mentioned: list[str]
):
    """Nothing is written."""
    run = references.run(BRIEF)
    bench.penstock("export", run.name, str(tmp_path / "file"), *arguments, "--store", run.url).refuse(*mentioned)
    assert not (tmp_path / "file").exists()


@pytest.mark.slow
def test_a_served_policy_answers(bench: Bench, references: References):
    """`penstock serve-policy` says where it listens, acts as `load_policy` does, and ends with SIGTERM."""
    run = references.run(BRIEF)
    server = bench.penstock("serve-policy", run.name, "--port", "0", "--store", run.url, cold=True)
    wait_until(lambda: "Ctrl-C ends it" in server.stdout or not server.running, "the server")
    found = re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout)
    assert found, server.output
    observation = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    body = json.dumps({"observation": observation.tolist()}).encode()
    request = urllib.request.Request(f"{found[0]}/act", data=body, method="POST")
    with urllib.request.urlopen(request, timeout=150) as response:
        answer = json.loads(response.read())
    policy = penstock.load_policy(run.name, store=run.url)
    assert answer == {"action": policy.act(observation).tolist(), "version": policy.origin.version}
    taken = ("serve-policy", run.name, "--port", found[1], "--store", run.url)
    assert bench.penstock(*taken).wait() == 1, "the port is taken"
    server.send(signal.SIGTERM)
    assert server.wait() in {0, -signal.SIGTERM, 128 + signal.SIGTERM}


@pytest.mark.slow
def test_played_episodes_are_those_of_an_evaluation(bench: Bench, references: References, tmp_path: Path):
    """`penstock play --video` writes them, a picture a step, and changes nothing in the run."""
    run = references.run(BRIEF)
    before = run.content()
    path = tmp_path / "episodes.gif"
    options = ("--episodes", "2", "--seed", "5", "--json", "--store", run.url)
    played = json.loads(bench.penstock("play", run.name, "--video", str(path), *options).succeed())["episodes"]
    evaluated = ("evaluate", run.name, "--episodes", "2", "--key", "5", "--json", "--store", run.url)
    expected = json.loads(bench.penstock(*evaluated).succeed())
    assert sum(episode["episode_return"] for episode in played) == 2 * expected["mean_return"]
    assert sum(episode["steps"] for episode in played) == 2 * expected["mean_length"]
    assert iio.improps(path).n_images > 1
    assert run.content() == before


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["--video", "episodes.avi"], ["'.avi'", ".mp4 or .gif"]),
        pytest.param(["--video", "absent/episodes.gif"], ["absent/episodes.gif", "name a file"], marks=SLOW),
        pytest.param([], ["no display", "--video FILE.mp4"], marks=SLOW),
        pytest.param(["--video", "episodes.gif", "--version", "99"], ["no version 99"], marks=SLOW),
    ],
    ids=" ".join,
)
def test_playing_mistakes_are_refused(bench: Bench, references: References, arguments: list[str], mentioned: list[str]):
    """The message says what is expected, and no file is left."""
    run = references.run(BRIEF)
    none = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "SDL_VIDEODRIVER": ""}
    bench.penstock("play", run.name, *arguments, "--store", run.url, **none).refuse(*mentioned)
    assert not list(bench.folder.rglob("*episodes*"))


@pytest.mark.parametrize(
    ("arguments", "mentioned"),
    [
        (["--version", "last"], ["'last'", "newest"]),
        (["--host", "256.1.1.1"], ["can't listen on 256.1.1.1:8900"]),
        pytest.param(
            ["--device", "cuda"],
            ["device 'cuda': torch has none of that name here", "choose cpu"],
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
    ids=" ".join,
)
def test_serving_mistakes_are_refused(bench: Bench, references: References, arguments: list[str], mentioned: list[str]):
    """The message names the option; the line before says that a policy is being loaded."""
    run = references.run(BRIEF)
    command = bench.penstock("serve-policy", run.name, *arguments, "--store", run.url)
    assert command.wait() == 1
    assert all(text in command.errors for text in mentioned), command.errors
    assert "Traceback" not in command.errors
