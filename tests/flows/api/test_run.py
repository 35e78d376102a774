"""`penstock.Run` reads a stored run: its tables agree with what is stored, and nothing is written."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

import penstock
from penstock.storage.runs.commits import commit_name
from penstock.storage.stores.open import open_store

from ...support.stored.stored_points import small_config, store_run

GOLDEN = Path(__file__).parents[2] / "golden" / "run"
MORE = ("commits/00000001.json", "latest.json", "timings/00000001-00000001.json")
"""Objects that the golden run stored when its second stage ended."""


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "runs" / "golden"))


def stored(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def commits(folder: Path) -> list[dict]:
    return [json.loads((folder / commit_name(stage)).read_bytes()) for stage in (0, 1)]


def test_tables_are_what_is_stored(golden: Path):
    """Each stage, evaluation, snapshot and episode once, with the stored numbers; reading writes nothing."""
    before, run, (first, second) = stored(golden), penstock.Run(golden), commits(golden)
    assert run.history.column("env_steps").to_pylist() == [first["env_steps"], second["env_steps"]]
    assert run.history.column("return").to_pylist() == [one["metrics"]["episode_return"] for one in (first, second)]
    assert run.history.column("entropy").to_pylist() == [one["metrics"]["entropy"] for one in (first, second)]
    assert all(seconds > 0 for seconds in run.history.column("seconds").to_pylist())
    rows = run.evaluations.to_pylist()
    assert [(row["version"], row["stage"], row["seeds"]) for row in rows] == [(3, 0, None), (6, 1, None), (6, 1, 10**6)]
    assert [row["mean_return"] for row in rows[:2]] == [one["evaluation"]["mean_return"] for one in (first, second)]
    named = {ref["version"]: ref["name"] for one in (first, second) for ref in one["snapshots"]}
    assert {row["version"]: row["name"] for row in run.snapshots.to_pylist()} == named
    assert run.snapshots.column("stored").to_pylist() == [True] * len(named)
    assert run.episodes.num_rows == second["episodes"]
    ended = run.episodes.filter(run.episodes["stage"].to_numpy() == 0)["return"].to_numpy()
    assert ended.mean() == pytest.approx(first["metrics"]["episode_return"])
    assert run.config.seed == json.loads((golden / "run.json").read_bytes())["config"]["seed"]
    assert (run.config.name, run.finished) == ("golden", None)
    assert stored(golden) == before


def test_a_run_is_read_while_it_grows(golden: Path, tmp_path: Path):
    """Before the first commit, after it, and after the second; timings that come after their commit are seen."""
    later = tmp_path / "later"
    for name in (*MORE, "commits/00000000.json", "timings/00000000-00000001.json"):
        (later / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(golden / name, later / name)
    run = penstock.Run("golden", store=tmp_path / "runs")
    assert [getattr(run, table).num_rows for table in ("history", "snapshots", "episodes")] == [0, 0, 0]
    assert run.outcome == "nothing was committed"
    assert "nothing was committed" in run._repr_html_()
    shutil.move(later / "commits/00000000.json", golden / "commits")
    assert run.history.column("seconds").to_pylist() == [None]
    episodes = run.episodes.num_rows
    for name in ("timings/00000000-00000001.json", *MORE):
        shutil.move(later / name, golden / name)
    assert None not in run.history.column("seconds").to_pylist()
    assert run.history.num_rows == 2
    assert run.episodes.num_rows > episodes > 0
    assert run.episodes.equals(penstock.Run(golden).episodes)


def test_another_run_of_the_name_is_read_anew(tmp_path: Path):
    """Its rows do not mix with those that were read of the first one, whichever of the two is longer."""
    first = store_run(small_config(tmp_path), "mine", [1.0, 2.0])
    run = penstock.Run("mine", store=tmp_path)
    assert run.history["evaluation"].to_pylist() == [1.0, 2.0]
    shutil.rmtree(first.store.url)
    store_run(small_config(tmp_path), "mine", [3.0, 4.0, 5.0])
    assert run.history["evaluation"].to_pylist() == [3.0, 4.0, 5.0]
    assert run.evaluations["mean_return"].to_pylist() == [3.0, 4.0, 5.0]


def test_a_run_on_s3_is_read(s3_url: str):
    """By its address and by its name in a store, with the same tables."""
    store = open_store(s3_url)
    for path in GOLDEN.rglob("*"):
        if path.is_file():
            store.write(f"golden/{path.relative_to(GOLDEN)}", [path.read_bytes()])
    here = penstock.Run(GOLDEN)
    for run in (penstock.Run(f"{s3_url}/golden"), penstock.Run("golden", store=s3_url)):
        assert run.history.equals(here.history)
        assert run.episodes.equals(here.episodes)


def test_reading_imports_neither_prefect_nor_dask_nor_torch(golden: Path):
    """In a process of its own, with the public name; also without pandas and matplotlib, which are named if missed."""
    script = f"""
import sys
class Missing:
    def find_spec(name, path=None, target=None):
        if name in ("pandas", "matplotlib"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing)
import penstock
run = penstock.Run({str(golden)!r})
print(run, run.history.num_rows, run.evaluations.num_rows, run.snapshots.num_rows, run.episodes.num_rows > 0)
run._repr_html_(), run.config
for use in (run.to_pandas, run.plot):
    try:
        use()
    except penstock.ConfigError as error:
        print(error)
print([name for name in ("prefect", "distributed", "dask", "torch") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == f"penstock.Run('golden', store={str(golden.parent)!r}) 2 3 4 True"
    assert "needs pandas, which is not installed: `pip install 'penstock-rl[analysis]'`" in said[1]
    assert "needs matplotlib, which is not installed: `pip install 'penstock-rl[analysis]'`" in said[2]
    assert said[3] == "[]"


def test_frames_and_curves(golden: Path):
    """A data frame has the table's columns; a plot has a curve of training, one of evaluation, and its band.

    Its axis says whose steps they are.
    """
    mpl.use("agg")
    run = penstock.Run(golden)
    for table in ("history", "evaluations", "snapshots", "episodes"):
        frame = run.to_pandas(table)  # type: ignore[arg-type]
        assert list(frame.columns) == getattr(run, table).column_names
        assert len(frame) == getattr(run, table).num_rows
    with pytest.raises(penstock.ConfigError, match="table 'stages': expected 'history'"):
        run.to_pandas("stages")  # type: ignore[arg-type]
    axes = run.plot()
    trained, evaluated = axes.get_lines()
    assert list(trained.get_ydata()) == run.history.column("return").to_pylist()
    assert list(evaluated.get_ydata()) == run.evaluations.column("mean_return").to_pylist()[:2]
    (band,) = axes.collections
    lows_and_highs = run.evaluations.slice(0, 2)
    assert band.get_datalim(axes.transData).ymin == min(lows_and_highs.column("min_return").to_pylist())
    assert band.get_datalim(axes.transData).ymax == max(lows_and_highs.column("max_return").to_pylist())
    assert run.plot(axes) is axes
    with pytest.raises(penstock.ConfigError, match="ax is 'left', expected matplotlib's Axes"):
        run.plot("left")  # type: ignore[arg-type]
    assert len(axes.get_lines()) == 4
    assert axes.get_xlabel() == "environment steps"
    replayed = penstock.Run(GOLDEN.with_name("replayed"))
    assert replayed.plot(axes).get_xlabel() == "environment steps, or stored steps learned from"
    alone = replayed.plot()
    assert alone.get_xlabel() == "stored steps learned from"
    mpl.pyplot.close(alone.figure)
    mpl.pyplot.close(axes.figure)


def test_a_run_acts_and_is_evaluated(golden: Path):
    """The policy is that of the version; evaluating twice gives the same result, and keeps torch's threads."""
    import torch

    run, threads = penstock.Run(golden), torch.get_num_threads()
    assert run.policy().origin.version == 6
    assert run.policy(3).origin.version == 3
    torch.set_num_threads(3)
    try:
        results = [penstock.evaluate(each, episodes=2) for each in (run, golden)]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert [{**result, "seconds": 0} for result in results] == [{**results[0], "seconds": 0}] * 2
    assert results[0]["mean_return"] == run.evaluations.to_pylist()[-1]["mean_return"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episodes": 0}, "episodes = 0: expected a whole number of at least 1"),
        ({"stage": 1.5}, "stage = 1.5: expected a whole number of at least 0"),
        ({"stage": 9}, "has committed stages 0 to 1"),
        ({"store": "elsewhere"}, "has a store, and store = 'elsewhere' is given"),
    ],
    ids=str,
)
def test_what_cannot_be_evaluated_is_said(golden: Path, options: dict, message: str):
    """A user's mistake costs no episode."""
    with pytest.raises(penstock.ConfigError, match=message):
        penstock.evaluate(penstock.Run(golden), **options)


def test_damage_is_shown(golden: Path):
    """An altered commit is an error in a table, and text in a notebook's view, which may not fail."""
    run = penstock.Run(golden)
    (golden / "commits" / "00000001.json").write_bytes(b"{}")
    with pytest.raises(penstock.CorruptObjectError, match=r"00000001\.json"):
        _ = run.history
    assert "00000001.json" in run._repr_html_()
    with pytest.raises(penstock.PenstockError, match="there is no run 'absent'"):
        penstock.Run("absent", store=golden.parent)
