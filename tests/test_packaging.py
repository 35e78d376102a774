"""The packages: ownership of names, direction of imports, light modules, and objects that travel to workers."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distributions, version
from pathlib import Path

import cloudpickle
import pytest

import penstock
from penstock import tasks
from penstock.storage.errors import CommitConflictError
from penstock.storage.refs import Ref, ShardRef, SnapshotRef, StateRef
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.open import open_store
from penstock.tasks.driver import worker_slots
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.roles.worker import entrypoint
from penstock.tasks.runtime import mailbox
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.setup.config.run import TrainConfig
from penstock.tasks.setup.distribution.policies import single_learner_coarse
from penstock.tasks.specs import ActionSpec, EnvironmentSpec

ROOT = Path(tasks.__path__[0]).resolve().parent
PACKAGES = ("flows", "tasks", "storage", "native")
STORAGE = ("storage", "stores", "shards", "transfer", "cache", "runs", "testing")
TASKS = (
    *("tape", "tasks"),
    *("model.nn", "setup.distribution", "setup.config", "environments", "model.algorithms", "runtime"),
    *("data.snapshots", "data.input", "data.replay", "data.datasets", "roles.stepping", "roles.acting", "analysis"),
    "inference",
    *("roles.reducing", "roles.learning", "setup.planning", "roles.worker", "conformance", "driver", "simulation"),
)
NATIVE = (
    *(
        "native",
        "pool",
        "adapters",
        "teams",
        "sockets",
        "simulators",
        "registry",
        "compile",
        "batch",
        "floorplan",
        "trainers",
    ),
    "conformance",
    "packages",
)
FLOWS = (
    *("settings", "observers.callbacks", "display", "report", "observers.telemetry", "observers.tracking"),
    *("observers", "support", "sweeps", "flows", "api", "cli"),
)
"""Rooms (subpackages) from the lowest to the highest: one may import those before it and none after it. A package's own
name stands for the modules directly in it."""
BUILT_UPON = {f"tasks.model.algorithms.{name}" for name in ("behaviour_cloning", "dqn", "sac", "td3")}
"""Algorithms of which others are variants."""
FOR_ALGORITHMS = {
    "tasks.specs",
    "tasks.tape.capture",
    "tasks.tape.operations",
    "tasks.tape.recording",
    "tasks.tape.totals",
    "tasks.model.algorithms.contract",
    "tasks.model.nn.action_values",
    "tasks.model.nn.agent_networks",
    "tasks.model.nn.distributions",
    "tasks.model.nn.kernels",
    "tasks.model.nn.network",
    "tasks.model.nn.surrogate",
    "tasks.model.nn.layers",
    "tasks.model.nn.normalizers",
    "tasks.model.nn.placement_network",
    "tasks.model.nn.functional",
    "tasks.model.nn.leaves",
    "tasks.model.nn.returns",
    "tasks.model.nn.squashed",
    "tasks.model.nn.value_learning",
    "tasks.model.nn.optimizers",
}
KERNELS = {"native", "native._learner", "native.kernel_level"}
HYPER_PARAMETERS = {
    f"tasks.setup.config.{module}" for module in ("algorithm_base", "on_policy", "off_policy", "offline")
}
"""Settings of algorithms, without torch."""
AROUND_ALGORITHMS = {"custom", "custom_probe", "registry", "source_digest"}
"""Modules that find and make algorithms."""
UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNPICKLING_CALLS = {"torch.load", "torch.save", "np.load", "numpy.load", "distributed.protocol.deserialize"}

DIGEST = "0" * 32


def modules(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, f"no modules in {ROOT / package}"
    return found


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Every module that is named in an import anywhere in a file, within functions and for types alone included.

    `from a import b` gives `a.b` if that is a module of ours, otherwise `a`.
    """
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            base = str(node.module)
            for alias in node.names:
                below = ROOT.joinpath(*base.split("."), alias.name)
                yield f"{base}.{alias.name}" if below.with_suffix(".py").exists() or below.is_dir() else base


def ours(path: Path) -> set[str]:
    """Modules of ours that a file imports, without the leading `penstock.`."""
    found = set()
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "penstock" and rest.partition(".")[0] in PACKAGES:
            found.add(rest)
    return found


def room_of(module: str) -> str:
    """The room of a module, `tasks.data.input.pipeline` -> `tasks.data.input`, or the package itself."""
    parts = module.split(".")
    while not ROOT.joinpath(*parts).is_dir():
        parts.pop()
    grouped = ".".join(parts[1:3]) in {"tasks": TASKS, "flows": FLOWS}.get(parts[0], ())
    return ".".join(parts[: 3 if grouped else 2])


def loaded_after(folder: Path, *statements: str) -> list[set[str]]:
    """Top-level modules of a fresh interpreter, outside the repository, after each of several statements."""
    report = "import sys\nprint(*sorted({name.split('.')[0] for name in sys.modules}))"
    program = "\n".join(f"{statement}\n{report}" for statement in statements)
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_penstock_is_installed_once():
    """Two installed copies would make it a matter of path order which code a worker runs."""
    assert [distribution.name for distribution in distributions() if "penstock" in distribution.name] == ["penstock-rl"]


def test_no_module_of_flows_shadows_another():
    """Prefect puts a flow file's folder first on the path: a module named `queue` there would replace Python's own."""
    stems = {path.stem for path in (ROOT / "flows").iterdir()} - {"__init__", "__pycache__"}
    taken = set(sys.stdlib_module_names) | {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert stems & taken == set()


def test_flow_files_hold_flows_and_nothing_else():
    """Prefect loads flow files by path, as modules of other names: what else they define would exist twice."""
    flow_files = []
    for path in modules("flows"):
        body = tree(path).body
        functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        if any(is_flow(node) for node in functions):
            flow_files.append(path.name)
            others = [ast.unparse(node) for node in body if not (is_flow(node) or is_import_or_text(node))]
            assert others == [], path
    assert flow_files == [
        "collect_garbage.py",
        "evaluate.py",
        "replay.py",
        "resume.py",
        "sweep.py",
        "train.py",
        "verify.py",
    ]


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


@pytest.mark.parametrize(
    ("package", "rooms", "below"),
    [
        ("native", NATIVE, ()),
        ("storage", STORAGE, ()),
        ("tasks", TASKS, ("storage", "native")),
        ("flows", FLOWS, PACKAGES),
    ],
)
def test_rooms_import_downwards(package: str, rooms: tuple[str, ...], below: tuple[str, ...]):
    """Packages know those below them, rooms those before them in the table; so there is no cycle anywhere."""
    order = [room if room == package else f"{package}.{room}" for room in rooms]
    for path in modules(package):
        room = room_of(module_name(path))
        if path.name == "__init__.py" and room not in order[1:]:
            continue  # the package's own interface re-exports from its rooms; a group of rooms holds nothing
        assert room in order, f"{path}: name the room {room} in the table"
        for name in ours(path):
            other = room_of(name)
            if name.split(".")[0] != package:
                assert name.split(".")[0] in below, f"{path} imports {name}"
            else:
                assert order.index(other) <= order.index(room), f"{path} imports {name}, which is above it"


def test_rooms_are_small():
    """At most fifteen modules and subpackages in a folder, besides its `__init__`: a person sees what is in it."""
    for package in PACKAGES:
        for folder in {path.parent for path in modules(package)}:
            modules_there = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
            rooms_there = [path.parent for path in folder.glob("*/__init__.py")]
            assert len(modules_there) + len(rooms_there) <= 15, folder


def test_bare_names_are_not_imported():
    """The folders stand at the top of the checkout, so `import tasks` works there, and would load a second copy."""
    assert set(PACKAGES) & set(sys.modules) == set()


def test_algorithms_import_no_runtime():
    """An algorithm knows no rank, device, file or cluster; so neither it nor its helpers import anything that does."""
    for path in modules("tasks/model/algorithms"):
        if path.stem in AROUND_ALGORITHMS:
            continue
        assert ours(path) <= FOR_ALGORITHMS | HYPER_PARAMETERS | BUILT_UPON, path
    for name in FOR_ALGORITHMS:
        path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        assert ours(path) <= FOR_ALGORITHMS | KERNELS | {"storage.shards.specs"}, path


def test_the_tutorials_algorithm_needs_only_public_names(tmp_path: Path):
    """A custom algorithm needs `penstock` and `penstock.nn`, which hold what algorithms may import here."""
    text = (ROOT / "docs" / "custom_algorithm.md").read_text(encoding="utf-8")
    file = tmp_path / "actor_critic.py"
    file.write_text(text.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    assert {name for name in imported(file) if name.startswith("penstock")} == {"penstock", "penstock.nn"}
    named = [
        alias.name
        for node in tree(file).body
        if isinstance(node, ast.ImportFrom)
        if node.module == "penstock"
        for alias in node.names
    ]
    assert "Algorithm" in named
    assert set(named) <= set(penstock.__all__)
    assert ours(ROOT / "penstock" / "nn.py") <= FOR_ALGORITHMS


def test_storage_imports_nothing_above_it():
    """Data outlives the software that made it: storage needs no torch, Dask or Prefect to be read."""
    for path in modules("storage"):
        assert {name.split(".")[0] for name in imported(path)} & {"torch", "dask", "distributed", "prefect"} == set()


def test_light_modules_stay_light(tmp_path: Path):
    """The command answers at once, a run begins without Prefect, and the process that drives it needs no torch.

    One process imports the modules, those that may load least first: the first that loads too much is named.
    """
    dask = {"dask", "distributed"}
    absent = {
        "penstock.flows.cli.main": {"torch", "prefect", "numpy", "pyarrow"} | dask,
        "penstock.tasks.setup.config.run": {"torch", "prefect"} | dask,
        "penstock.tasks.environments.torch.registry": {"torch", "prefect"} | dask,
        "penstock.tasks.model.algorithms.custom_probe": {"torch", "prefect"} | dask,
        "penstock.tasks.roles.worker.entrypoint": {"torch", "prefect"},
        "penstock.flows.support.head_start": {"torch", "prefect"},
    }
    loaded = loaded_after(tmp_path, *(f"import {module}" for module in absent))
    for module, found in zip(absent, loaded, strict=True):
        assert "penstock" in found
        assert found & absent[module] == set(), module


def test_modules_of_the_flow_need_no_torch(tmp_path: Path):
    """Torch costs seconds and 200 MB, and the process that drives a run computes nothing.

    One process imports the flows one after another: the first that loads torch is named.
    """
    flows = ("train", "replay", "resume", "sweep", "collect_garbage", "verify")
    loaded = loaded_after(tmp_path, *(f"import penstock.flows.{flow}" for flow in flows))
    for flow, found in zip(flows, loaded, strict=True):
        assert "prefect" in found, flow
        assert "torch" not in found, flow


def test_writing_a_shard_imports_no_pandas(tmp_path: Path):
    """`pyarrow.array` does where it is installed; that costs every process that acts a second and 60 MB."""
    cases = (ROOT / "tests" / "support" / "stored" / "shard_cases.py").read_text(encoding="utf-8")
    (loaded,) = loaded_after(tmp_path, f"{cases}\na_shard({{'observation': Spec('float32', (4,))}}, 4, 2)")
    assert "pyarrow" in loaded
    assert "pandas" not in loaded


@pytest.mark.parametrize("package", ["storage", "tasks", "flows"])
def test_nothing_is_unpickled(package: str):
    """A writer of a store must not be able to run code in its readers."""
    for path in modules(package):
        if path.parent.name == "testing":
            continue  # the store contract has a test that a store survives pickling
        assert {name.split(".")[0] for name in imported(path)} & UNPICKLERS == set(), path
        calls = {ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)}
        assert calls & UNPICKLING_CALLS == set(), path


def test_objects_for_workers_load_in_a_fresh_process(tmp_path: Path):
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
        PPO(PPOSettings(), environment),
    ]
    functions = [
        entrypoint.run_member,
        entrypoint.run_evaluation,
        entrypoint.dask_setup,
        entrypoint.warm_up,
        mailbox.deliver,
        worker_slots.read_slots,
        worker_slots.worker_addresses,
        worker_slots.reschedule_blocked,
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


def test_version_of_the_command_and_of_the_package_agree(tmp_path: Path):
    """`penstock --version` prints `penstock.__version__`, which is that of the installed distribution."""
    program = "import sys; sys.argv = ['penstock', '--version']; from penstock.flows.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"penstock {penstock.__version__}\n"), done.stderr
    assert penstock.__version__ == version("penstock-rl")


def test_public_names_are_sorted_and_resolve():
    """Every name in `penstock.__all__` exists, is documented and is the object that its module defines."""
    assert penstock.__all__ == sorted(penstock.__all__)
    for name in penstock.__all__:
        assert getattr(penstock, name).__doc__, name
    with pytest.raises(AttributeError, match=r"its names are .*TrainConfig"):
        _ = penstock.no_such_name


def test_storage_needs_no_pytest(tmp_path: Path):
    """Only `penstock.storage.testing`, which ships the store contract, imports pytest."""
    alone, with_contract = loaded_after(
        tmp_path,
        "import penstock.storage, penstock.storage.stores.open",
        "from penstock.storage.testing import StoreContract",
    )
    assert "pytest" not in alone
    assert "pytest" in with_contract
