"""`penstock report` and `penstock export --to tensorboard` show exactly what storage holds."""

from __future__ import annotations

import base64
import io
import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from penstock.flows.cli.report import write_report
from penstock.flows.report.page import Pictures, render
from penstock.storage.errors import ConfigError, RunNotFoundError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.analysis.evaluation import evaluate_commit
from penstock.tasks.analysis.history import Stage, read_history
from penstock.tasks.analysis.lineage import source_stages
from penstock.tasks.data.replay.plan import pin
from penstock.tasks.setup.config.replay import build_replay_config

from ...support.stored.stored_run import StoredRun
from ..conftest import BRIEF

if TYPE_CHECKING:
    from pathlib import Path

    from ..conftest import Bench

_NEVER_CLOSED = {"meta", "img", "input"}


class Page(HTMLParser):
    """A page that is well formed: its texts by element, and what it would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.titles: set[str] = set()
        self.loads: list[str] = []
        self.changed: list[str] = []
        self.scripts: dict[str, Any] = {}
        self._script = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loads += [str(found[name]) for name in ("src", "href") if name in found]
        self.titles.add(str(found.get("title")))
        self._script = str(found.get("id", "")) if tag == "script" else ""
        if tag == "tr" and found.get("class") == "changed":
            self.changed.append("")
        if tag not in _NEVER_CLOSED:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            if self._script:
                self.scripts[self._script] = json.loads(data)
            return
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data.strip())

    def line(self, name: str) -> dict[str, Any]:
        """The one line of that name."""
        traces = [trace for figure in self.scripts["figures"].values() for trace in figure["data"]]
        (found,) = [trace for trace in traces if trace["name"] == name]
        return found


@pytest.fixture(scope="module")
def run(references, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """A copy with one evaluation, the one made here: other tests evaluate the shared run."""
    shared = references.run(BRIEF)
    folder = tmp_path_factory.mktemp("reported")
    shutil.copytree(f"{shared.url}/{shared.name}", folder / shared.name, ignore=shutil.ignore_patterns("evaluations"))
    stored = StoredRun(str(folder), shared.name)
    evaluate_commit(stored.folder, stored.folder.log.read(0), 3, 7)
    return stored


@pytest.fixture(scope="module")
def copies(run: StoredRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the run, for changes that would disturb other readers of the shared one."""
    folder = tmp_path_factory.mktemp("copies")
    shutil.copytree(f"{run.url}/{run.name}", folder / "whole")
    return folder


def test_a_report_holds_what_storage_holds(run: StoredRun, tmp_path: Path):
    """A report is one well-formed file that loads nothing, with commits' numbers, their names and a clip."""
    path = write_report(run.url, [run.name], tmp_path / "page.html")
    page, commits = Page(path.read_text()), run.commits()
    assert [load for load in page.loads if not load.startswith(("#", "data:"))] == []
    assert "default-src 'none'" in path.read_text()

    returns = page.line("evaluation, greedy")
    assert returns["y"] == [commit["evaluation"]["mean_return"] for commit in commits]
    assert returns["meta"]["steps"] == [commit["env_steps"] for commit in commits]
    assert returns["error_y"]["array"][0] == commits[0]["evaluation"]["max_return"] - returns["y"][0]
    assert page.line("evaluated concurrently with training")["meta"]["stages"] == [0]
    for name, value in commits[1]["metrics"].items():
        line = page.line("while acting") if name == "episode_return" else page.line(name)
        assert line["y"][1] == value
    assert page.line("as stored")["y"] == page.line("bound")["y"] == [BRIEF.lag] * BRIEF.stages
    timings = sorted(run.timings(), key=lambda one: one["stage"])
    used = [next(one for one in part["processes"] if one["members"] == ["learn-0"]) for part in timings]
    assert page.line("learn, CPU")["y"] == [one["cpu_seconds"] / one["seconds"] for one in used]
    assert {"CPU", "Memory"} <= set(page.texts["h3"])
    assert "GPU memory" not in page.texts["h3"]
    assert page.line("learn, memory")["y"] == [one["memory_bytes"] for one in used]
    learning = page.line("learning")
    assert len(learning["x"]) > 2 * BRIEF.stages
    learned = sum(part["learn_seconds"] for one in timings for part in one["learn"])
    assert sum(learning["x"]) == pytest.approx(learned, abs=0.001 * BRIEF.all_rounds + 0.01)
    first = [base for base, text in zip(learning["base"], learning["text"], strict=True) if text.startswith("stage 0")]
    assert first == sorted(first)
    assert max(first) < timings[0]["stage_seconds"] < min(set(learning["base"]) - set(first))

    named = {ref["name"] for commit in commits for ref in (*commit["snapshots"], commit["checkpoint"])}
    newest = {ref["name"] for ref in commits[-1]["shards"] if ref["round"] == commits[-1]["rounds"][1]}
    assert named | newest <= page.titles
    assert "act-0" in page.texts["td"]
    assert "algorithm.epochs" in page.texts["td"]
    frames = page.scripts["clips"][run.name]["urls"]
    assert Image.open(io.BytesIO(base64.b64decode(frames[-1].partition(",")[2]))).format == "WEBP"
    assert 1 < len(frames) <= 240


def test_a_report_compares_several_runs(copies: Path):
    """Each run has its lines; the settings that differ are marked, with a replay's and what it read."""
    root = open_store(copies)
    cloned = RunFolder(root, "cloned")
    settings = {"name": "cloned", "store": str(copies), "source": {"runs": ["whole"], "stages": {"first": 1}}}
    config, reads = pin(root, cloned, build_replay_config(settings))
    stored = config.model_dump(mode="json", exclude={"store", "cluster"})
    cloned.create({"config": stored, "made_with": {}, "promise": {}, "created": None, **reads})
    path = write_report(str(copies), ["whole", "cloned"], copies / "both.html", clips=False)
    page = Page(path.read_text())
    assert page.line("whole: evaluation, greedy")
    assert {"ppo", "behaviour_cloning", "algorithm.name", "source.runs"} <= set(page.texts["td"])
    assert "Nothing is committed yet" in " ".join(page.texts["p"])
    shards = BRIEF.rounds * BRIEF.tiles
    (source,) = source_stages(read_history(cloned))
    assert (source.run, source.stage, source.shards, source.all_shards) == ("whole", 1, shards, shards)
    assert source.commit == RunFolder(root, "whole").log.digest_of(1)


def test_markup_in_a_run_is_shown_as_text(copies: Path):
    """Markup in settings, metrics and members' names of a run is shown, and never becomes part of the page."""
    history = read_history(RunFolder(open_store(copies), "whole"))
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    config = {**history.config, "environment": {"id": evil, "settings": {evil: evil}}}
    first = history.stages[0]
    assert first.timings is not None
    timings = replace(first.timings, act=(replace(first.act[0], member=evil),))
    stage = Stage(replace(first.commit, metrics={evil: 1.0}, finished=evil), timings)
    history = replace(history, description={**history.description, "config": config}, stages=(stage,))
    html = render([history], [Pictures(missing=evil)])
    page = Page(html)
    assert evil in page.texts["td"]
    assert [load for load in page.loads if not load.startswith("#")] == []
    assert "<script>alert" not in html


def test_a_report_without_timings_snapshots_and_shards_has_curves(copies: Path):
    """A report of commits alone has their curves, and states why there is no clip."""
    shutil.copytree(copies / "whole", copies / "bare")
    for folder in ("timings", "snapshots", "shards"):
        shutil.rmtree(copies / "bare" / folder)
    (copies / "bare/timings").mkdir()
    (copies / "bare/timings/00000000-00000001.json").write_text("{")
    page = Page(write_report(str(copies), ["bare"], copies / "bare.html").read_text())
    assert len(page.line("evaluation, greedy")["y"]) == BRIEF.stages
    assert any(text.startswith("No clip") for text in page.texts["p"])


@pytest.mark.parametrize(
    ("names", "out", "error", "says"),
    [
        (["nobody"], "page.html", RunNotFoundError, "there is no run 'nobody'"),
        (["whole", "whole"], "page.html", ConfigError, "whole more than once"),
        (["whole"], "page.pdf", ConfigError, "a name that ends in .html"),
        (["whole"], "none/page.html", ConfigError, "is in a folder that does not exist"),
        (["../whole"], "page.html", ConfigError, "can't name a run"),
    ],
)
def test_bad_arguments_are_refused(copies: Path, tmp_path: Path, names, out: str, error: type[Exception], says: str):
    """Each mistake is one line of error, and nothing is written."""
    with pytest.raises(error, match=says):
        write_report(str(copies), names, tmp_path / out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_repeated_exports_to_tensorboard_are_equal(run: StoredRun, bench: Bench):
    """TensorBoard's own reader finds commits' numbers over environment steps; a second export writes the same bytes."""
    logs = bench.folder / "logs"
    command = ("export", run.name, str(logs), "--to", "tensorboard", "--store", run.url, "--json")
    (file,) = [logs / run.name / "events.out.tfevents.penstock"]
    written = []
    for _ in range(2):
        counts = json.loads(bench.penstock(*command).succeed())
        written.append(file.read_bytes())
        assert sorted((logs / run.name).iterdir()) == [file, file.with_name("penstock.json")]
    assert written[0] == written[1]
    read = EventAccumulator(str(logs / run.name))
    read.Reload()
    commits = run.commits()
    events = read.Scalars("return/evaluation")
    assert [event.step for event in events] == [commit["env_steps"] for commit in commits]
    means = [commit["evaluation"]["mean_return"] for commit in commits]
    assert [event.value for event in events] == pytest.approx(means, rel=1e-6)
    entropy = [commit["metrics"]["entropy"] for commit in commits]
    assert [event.value for event in read.Scalars("learning/entropy")] == pytest.approx(entropy, rel=1e-6)
    tags = read.Tags()["scalars"]
    assert sum(len(read.Scalars(tag)) for tag in tags) == counts["scalars"]
    hparams = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"algorithm.epochs" in hparams
