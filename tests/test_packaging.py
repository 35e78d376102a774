"""How the packages lie together: who owns their names, who imports whom, what is light, and what travels to workers."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import cloudpickle
import pytest

import tasks
from storage.errors import CommitConflictError
from storage.refs import Ref, ShardRef, SnapshotRef, StateRef
from storage.run import RunFolder
from storage.specs import Spec
from storage.store import open_store
from tasks import mailbox, places, replica
from tasks.algorithms.ppo import PPO
from tasks.assignment import Assignment
from tasks.config import TrainConfig
from tasks.policies import single_learner_coarse
from tasks.specs import ActionSpec, EnvironmentSpec

ROOT = Path(tasks.__path__[0]).parent
PACKAGES = ("flows", "tasks", "storage", "native")
BELOW = {
    "flows": {"flows", "tasks", "storage", "native"},
    "tasks": {"tasks", "storage", "native"},
    "storage": {"storage"},
    "native": {"native"},
}
FOR_ALGORITHMS = {
    "tasks.specs",
    "tasks.algorithm",
    "tasks.distributions",
    "tasks.encoders",
    "tasks.surrogate",
    "tasks.networks",
    "tasks.normalizers",
    "tasks.convolutions",
    "tasks.floorplan_network",
    "tasks.recurrence",
    "tasks.modules",
    "tasks.returns",
    "tasks.optimizers",
}
UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNPICKLING_CALLS = {"torch.load", "torch.save", "np.load", "numpy.load", "distributed.protocol.deserialize"}

DIGEST = "0" * 32


def modules(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, f"no modules in {ROOT / package}"
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    """Every module that is named in an import anywhere in a file, within functions and for types alone included.

    `from a import b` gives `a.b` if that is a module of ours, otherwise `a`.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            base = str(node.module)
            for alias in node.names:
                below = ROOT.joinpath(*base.split("."), alias.name)
                yield f"{base}.{alias.name}" if below.with_suffix(".py").exists() or below.is_dir() else base


def ours(path: Path) -> set[str]:
    return {name for name in imported(path) if name.split(".")[0] in PACKAGES}


def loaded_after(statement: str, folder: Path) -> set[str]:
    """Top-level modules of a fresh interpreter, outside the repository, after a statement."""
    program = f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_no_other_distribution_owns_our_names():
    """A dependency that installs a package called `tasks` or `storage` would be imported in place of ours, or mixed."""
    owners = set()
    for distribution in distributions():
        for line in (distribution.read_text("RECORD") or "").splitlines():
            if line.split(",")[0].split("/")[0].removesuffix(".py") in PACKAGES:
                owners.add(distribution.name)
    assert owners == {"penstock"}
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None, package
        assert spec.origin is not None, f"{package} has no __init__.py, so any folder of that name could mix in"
        assert Path(spec.origin).parent == ROOT / package


def test_penstock_is_installed_once():
    """Two installed copies would make it a matter of path order which code a worker runs."""
    assert [distribution.name for distribution in distributions() if distribution.name == "penstock"] == ["penstock"]


def test_no_module_of_flows_shadows_another():
    """Prefect puts a flow file's folder first on the path: a module named `queue` there would replace Python's own."""
    stems = {path.stem for path in modules("flows")} - {"__init__"}
    taken = set(sys.stdlib_module_names) | {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert stems & taken == set()


def test_flow_files_hold_flows_and_nothing_else():
    """Prefect loads flow files by path, as modules of other names: what else they define would exist twice."""
    flow_files = []
    for path in modules("flows"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        if any(is_flow(node) for node in functions):
            flow_files.append(path.name)
            others = [ast.unparse(node) for node in body if not (is_flow(node) or is_import_or_text(node))]
            assert others == [], path
    assert flow_files == ["collect.py", "evaluate.py", "replay.py", "resume.py", "sweep.py", "train.py"]


def is_flow(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    called = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
    return any(isinstance(item, ast.Name) and item.id == "flow" for item in called)


def is_import_or_text(node: ast.stmt) -> bool:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return all(is_import_or_text(item) for item in [*node.body, *node.orelse])
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return text or isinstance(node, ast.Import | ast.ImportFrom)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_downwards(package: str):
    """Flows know tasks, tasks know storage and native, and these know neither each other nor anything above."""
    for path in modules(package):
        above = {name for name in ours(path) if name.split(".")[0] not in BELOW[package]}
        assert above == set(), path


def test_algorithms_know_nothing_of_who_runs_them():
    """An algorithm knows no rank, device, file or cluster; so neither it nor its helpers import anything that does."""
    for path in modules("tasks/algorithms"):
        assert ours(path) <= FOR_ALGORITHMS, path
    for name in FOR_ALGORITHMS:
        path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        assert ours(path) <= FOR_ALGORITHMS | {"storage.specs"}, path


def test_the_tutorials_algorithm_needs_no_more_than_ours(tmp_path: Path):
    """What is written outside the repository gets by with what algorithms may import here."""
    text = (ROOT / "docs" / "own_algorithm.md").read_text(encoding="utf-8")
    file = tmp_path / "actor_critic.py"
    file.write_text(text.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    assert ours(file) <= FOR_ALGORITHMS
    assert "tasks.algorithm" in ours(file)


def test_storage_is_free_of_what_runs_above_it():
    """Data outlives the software that made it: storage needs no torch, Dask or Prefect to be read."""
    for path in modules("storage"):
        assert {name.split(".")[0] for name in imported(path)} & {"torch", "dask", "distributed", "prefect"} == set()


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("flows.cli", {"torch", "prefect", "dask", "distributed", "numpy", "pyarrow"}),
        ("tasks.replica", {"torch", "prefect"}),
        ("tasks.torch_environments", {"torch", "prefect", "dask", "distributed", "numpy"}),
        ("tasks.config", {"torch", "prefect", "dask", "distributed"}),
        ("tasks.own_probe", {"torch", "prefect", "dask", "distributed"}),
    ],
)
def test_light_modules_stay_light(module: str, absent: set[str], tmp_path: Path):
    """The command answers at once, and the process that drives a run never pays for torch."""
    loaded = loaded_after(f"import {module}", tmp_path)
    assert module.split(".", maxsplit=1)[0] in loaded
    assert loaded & absent == set()


@pytest.mark.parametrize("flow", ["train", "replay", "resume", "sweep", "collect"])
def test_what_the_flow_imports_needs_no_torch(tmp_path: Path, flow: str):
    """Torch costs seconds and 200 MB, and the process that drives a run computes nothing."""
    loaded = loaded_after(f"import flows.{flow}", tmp_path)
    assert "prefect" in loaded
    assert "torch" not in loaded


def test_writing_a_shard_imports_no_pandas(tmp_path: Path):
    """`pyarrow.array` does where it is installed; that costs every process that acts a second and 60 MB."""
    cases = (ROOT / "tests" / "storage" / "shard_cases.py").read_text(encoding="utf-8")
    loaded = loaded_after(f"{cases}\na_shard({{'observation': Spec('float32', (4,))}}, 4, 2)", tmp_path)
    assert "pyarrow" in loaded
    assert "pandas" not in loaded


@pytest.mark.parametrize("package", ["storage", "tasks", "flows"])
def test_nothing_is_unpickled(package: str):
    """Who can write into a store must not be able to run code in whoever reads it."""
    for path in modules(package):
        assert {name.split(".")[0] for name in imported(path)} & UNPICKLERS == set(), path
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert calls & UNPICKLING_CALLS == set(), path


def test_what_travels_loads_in_a_fresh_process(tmp_path: Path):
    """Whatever crosses to a worker, or comes back, loads where only the installed packages are."""
    environment = EnvironmentSpec("CartPole-v1", Spec("float32", (4,)), ActionSpec("discrete", n=2), 500, 475.0)
    plain = [
        Ref("a", DIGEST, 1),
        ShardRef("a", DIGEST, 1, 2, 3, 4),
        StateRef("a", DIGEST, 1, 2, 3),
        SnapshotRef("a", DIGEST, 1, 2),
        Spec("float32", (4,)),
        TrainConfig(name="small", seed=4),
        Assignment(
            store="s",
            run="r",
            stage=0,
            attempt=0,
            gang="g",
            generation=1,
            role="act",
            replica=0,
            replicas=1,
            task_run="",
            cache_folder="c",
            device="cpu",
        ),
        single_learner_coarse(2),
        PPO(environment=environment),
    ]
    functions = [
        replica.run_member,
        replica.run_evaluation,
        replica.warm_up,
        mailbox.deliver,
        places.read_places,
        places.worker_addresses,
        places.move_blocked,
    ]
    root = open_store(str(tmp_path / "root"))
    folder = RunFolder(root, "small")
    error = CommitConflictError("another writer's commit stands at 3")
    (tmp_path / "there").write_bytes(cloudpickle.dumps((plain, functions, root, folder, error)))
    program = (
        "import cloudpickle, pathlib\n"
        "things = cloudpickle.loads(pathlib.Path('there').read_bytes())\n"
        "pathlib.Path('back').write_bytes(cloudpickle.dumps(things))\n"
    )
    searched = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=searched, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    plain_back, functions_back, root_back, folder_back, error_back = cloudpickle.loads((tmp_path / "back").read_bytes())
    assert plain_back == plain
    assert functions_back == functions
    assert (root_back.url, repr(folder_back), str(error_back)) == (root.url, repr(folder), str(error))
    assert type(error_back) is CommitConflictError
