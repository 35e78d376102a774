"""Exports runs as Minari datasets, and imports Minari datasets as runs, without loss.

An exported episode is whole, even if several shards store it. Columns other than observation, action, reward and the
end flags are among its `infos`. Minari's infos have one entry more than there are steps; the last one is zero if the
run stores none.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pyarrow.compute as pc
from gymnasium.spaces import Dict, Discrete, Tuple

from penstock.native.adapters.structured_actions import (
    UnsupportedActionError,
    is_structured,
    own_action,
    stored_action,
)
from penstock.storage.digest import parse_json
from penstock.storage.error_places import describe_error
from penstock.storage.errors import ConfigError, PenstockError
from penstock.storage.runs.lease import refuse_driven
from penstock.storage.runs.reader_claims import reading
from penstock.storage.runs.rollups.content import refs_of
from penstock.storage.shards.codec import decode_shard
from penstock.storage.shards.whole_episodes import whole_episodes
from penstock.storage.transfer.replacing import PARTIAL, require_folder
from penstock.tasks.data.datasets.stored_episodes import (
    LAST,
    commit_episodes,
    refuse_committed,
    write_episodes,
    written_as,
)
from penstock.tasks.data.input.run_selection import NEXT_OBSERVATION, exported_stages, shardless_message
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.setup.config.consent import require_consent
from penstock.tasks.setup.config.replay import build_stored_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa
    from gymnasium import Space
    from numpy.typing import NDArray

    from penstock.storage.refs import ShardRef
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.shards.codec import Shard
    from penstock.storage.shards.whole_episodes import WholeEpisode

CUT = "cut"
"""Name of the info that is true at the last step of an episode without an end. Minari requires one, so such an episode
is truncated as well."""
LAST_SUFFIX = "@last"
"""Suffix of the column that stores, at an episode's last step, the last entry of an info with one entry more than
steps."""

_KIND = "Minari dataset"
_SHARD_BYTES = 16 << 20
_NUMBERS = ("env_id", "episode_id", "policy_version")
_OWN = ("observation", "action", "reward", "terminated", "truncated")


@dataclass(frozen=True, slots=True)
class Exported:
    """Counts of an export."""

    episodes: int
    cut_episodes: int
    """Episodes without an end: the run ended before they did."""
    steps: int


def export_run(
    run: RunFolder,
    path: Path,
    observation_space: Space[Any],
    action_space: Space[Any],
    dataset_id: str | None = None,
    on_progress: Callable[[int, int], None] = lambda _, __: None,
    from_stage: int = 0,
) -> Exported:
    """Write all committed episodes as a Minari dataset in HDF5, images without JPEG encoding.

    `minari.MinariDataset(path / "data")` opens it; `minari.load_dataset` does if it is below Minari's own folder.

    Args:
        run: a run with committed shards.
        path: the dataset's folder, which must not exist yet, or be empty.
        observation_space: the space of one environment.
        action_space: the space of one environment.
        dataset_id: the dataset's name in Minari; by default, it is derived from the run's name.
        on_progress: called with the numbers of written steps and of all.
        from_stage: the first stage. Episodes that began in an earlier one are left out.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: Minari is not installed, the path exists, the stage is not committed, or shards were dropped.
        CorruptObjectError: a shard is damaged; nothing is written.
    """
    minari = _minari()
    data = path.absolute() / "data"  # Minari prefixes a relative path with its own folder
    partial = data.with_name(f".{data.name}{PARTIAL}")
    stages = exported_stages(run, from_stage)
    table = run.log.shard_table(stages[0], stages[-1])
    if not table.num_rows:
        raise ConfigError(shardless_message(run))
    with _dataset_folder(path):
        # Written under another name, so that an export that was stopped leaves no part of a dataset.
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            with reading(run.store, "export", from_stage, stages[-1], optional=True):
                counts = _write_dataset(
                    minari, run, table, partial, observation_space, action_space, dataset_id, on_progress
                )
            partial.rename(data)
        except (OSError, RuntimeError) as error:  # h5py has both for a full disk
            raise PenstockError(f"the dataset can't be written to '{path}': {describe_error(error)}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return counts


@contextlib.contextmanager
def _dataset_folder(path: Path) -> Iterator[None]:
    """Let no other export write into a folder, which is made, and removed where nothing is written into it.

    Raises:
        ConfigError: it has files, another export writes into it, or it can't be a folder.
    """
    created = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"'{path}' can't be a dataset's folder: {error}; choose a new path") from error
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another export writes into '{path}'; choose a new path") from None
        except OSError:  # such as a network's file system without locks
            pass
        require_folder(path, empty=True)
        yield
    finally:
        os.close(folder)
        if created:
            with contextlib.suppress(OSError):  # it has files
                path.rmdir()


def _write_dataset(
    minari: Any,
    run: RunFolder,
    table: pa.Table,
    data: Path,
    observation_space: Space[Any],
    action_space: Space[Any],
    dataset_id: str | None,
    on_progress: Callable[[int, int], None],
) -> Exported:
    storage = minari.dataset.minari_storage.MinariStorage.new(
        data, observation_space=observation_space, action_space=action_space, data_format="hdf5", jpeg_encoding=False
    )
    storage.update_metadata(
        {"dataset_id": dataset_id or dataset_id_of(run.name), "minari_version": minari.__version__}
        | _registered(run, observation_space, action_space)
    )
    tally = {"episodes": 0, "cut": 0, "steps": 0}
    acted = not run.was_imported()
    all_steps = pc.sum(table["rows"]).as_py()

    def buffers() -> Iterator[Any]:
        for index, episode in enumerate(whole_episodes(_shards(run, table), from_start=not table["stage"][0].as_py())):
            infos = _infos(episode)
            steps = len(episode.columns["reward"])
            tally["episodes"] += 1
            tally["cut"] += bool(infos[CUT].any())
            tally["steps"] += steps
            on_progress(tally["steps"], all_steps)
            yield minari.data_collector.EpisodeBuffer(
                id=index,
                observations=np.concatenate([episode.columns["observation"], episode.last_observation[None]]),
                actions=_own_actions(action_space, episode.columns["action"], acted=acted),
                rewards=episode.columns["reward"],
                terminations=episode.columns["terminated"] != 0,
                truncations=(episode.columns["truncated"] != 0) | infos[CUT][:steps],
                infos=infos,
            )

    storage.update_episodes(buffers())
    return Exported(tally["episodes"], tally["cut"], tally["steps"])


def dataset_id_of(name: str) -> str:
    """Return a run's id among Minari's datasets, whose names have no dot."""
    return f"penstock/{name.replace('.', '-')}-v0"


def import_dataset(run: RunFolder, path: Path) -> Exported:
    """Write a Minari dataset as a run of one stage, which readers accept like any other.

    A shard stores whole episodes, one after another, as the rows of one environment. A call that was stopped is
    repeated.

    Args:
        run: the run to create.
        path: the dataset's folder, which contains `data`.

    Raises:
        ConfigError: Minari is not installed, or the dataset is invalid, empty, or has values that columns can't store.
        RunExistsError: the run exists already.
        LeaseHeldError: another command makes the run.
    """
    check_import(run, path)
    minari = _minari()
    with _as_dataset(path) as data:
        dataset = minari.MinariDataset(data)
    description = _run_json(run.name, dataset)
    with written_as(run, description, _KIND) as check:
        refs, cut = _write_shards(run, dataset)
        if not refs:
            raise ConfigError(f"the Minari dataset '{path}' has no episodes; there is nothing to import")
        commit_episodes(run, description, refs, dataset.total_episodes, "imported from Minari", check)
    return Exported(dataset.total_episodes, cut, sum(ref.rows for ref in refs))


def check_import(run: RunFolder, path: Path) -> None:
    """Refuse the mistakes of an import that a few small reads show; errors as `import_dataset`."""
    refuse_committed(run, _KIND)
    refuse_driven(run.store)
    with _as_dataset(path) as data:
        _require_spaces(data)


@contextlib.contextmanager
def _as_dataset(path: Path) -> Iterator[Path]:
    """Yield the folder `data` of a dataset, and say of its errors that it is none.

    Raises:
        ConfigError: what is read there is no dataset.
    """
    try:
        yield path.absolute() / "data"
    except (OSError, ValueError, AssertionError) as error:
        raise ConfigError(f"'{path}' is not a Minari dataset: {error}; expected a folder with 'data' in it") from error


def _require_spaces(data: Path) -> None:
    """Refuse a dataset without its spaces: Minari would make the environment that it names, which is any function.

    Raises:
        OSError: the dataset says nothing of itself.
        ValueError: as that, or a space is missing.
    """
    facts = parse_json((data / "metadata.json").read_bytes())
    lacking = sorted({"observation_space", "action_space"} - {*facts})
    if lacking:
        raise ValueError(
            f"data/metadata.json has no {' and no '.join(lacking)}, and spaces are taken from no environment that a "
            f"dataset names, since that is any code. If you trust the dataset, write what "
            f"`minari.serialization.serialize_space` gives for them there"
        )


def _write_shards(run: RunFolder, dataset: Any) -> tuple[list[ShardRef], int]:
    """Write a dataset's episodes; return the shards, and the number of episodes that were cut."""
    last_infos = _last_infos(dataset)
    environment = dataset.env_spec.id if dataset.env_spec is not None else str(dataset.id)
    refs: list[ShardRef] = []
    pending: list[dict[str, NDArray[Any]]] = []
    cut = 0
    for episode in dataset.iterate_episodes():
        pending.append(_rows(episode, last_infos, dataset.action_space))
        cut += bool(CUT in pending[-1] and pending[-1][CUT].any())
        if sum(array.nbytes for rows in pending for array in rows.values()) >= _SHARD_BYTES:
            refs.append(write_episodes(run, len(refs), pending, environment))
            pending = []
    if pending:
        refs.append(write_episodes(run, len(refs), pending, environment))
    return refs, cut


def spaces_of(run: RunFolder) -> tuple[Space[Any], Space[Any]]:
    """Return the observation space and the action space of one of a run's environments.

    Raises:
        ConfigError: the environment is not registered here or has several agents, or Minari is not installed.
        ConsentError: the run names code in the working directory, and is not trusted.
    """
    config = run.load("config")["config"]
    if "imported" in config:
        _minari()
        from minari.serialization import deserialize_space  # noqa: PLC0415  (an extra)

        imported = config["imported"]
        return deserialize_space(imported["observation_space"]), deserialize_space(imported["action_space"])
    config = require_consent(run)["config"]
    with contextlib.closing(make_pool(build_stored_config(config), 1)) as pool:
        if agents := pool.environment["agents"]:
            raise ConfigError(
                f"run '{run.name}' has {config['environment']['id']} with {agents} agents and a reward each, and "
                f"Minari's episodes have one reward a step. Its shards are Arrow files, see docs/shards.md"
            )
        own = pool.own_action_space
        has_own = isinstance(own, Discrete) or is_structured(own)
        return pool.single_observation_space, own if has_own else pool.single_action_space


def _registered(run: RunFolder, observation_space: Space[Any], action_space: Space[Any]) -> dict[str, str]:
    """Return the `env_spec` of which Minari makes the environment, if Gymnasium has one with these spaces."""
    environment = run.load().get("config", {}).get("environment", {})
    spec = gymnasium.registry.get(environment.get("id", ""))
    if spec is None or environment.get("wrappers") or environment.get("settings"):
        return {}
    made = copy.copy(spec)
    if (limit := environment.get("max_episode_steps")) is not None:
        made.max_episode_steps = limit
    try:
        with contextlib.closing(gymnasium.make(made)) as env:
            is_same = (env.observation_space, env.action_space) == (observation_space, action_space)
        return {"env_spec": made.to_json()} if is_same else {}
    except Exception:  # noqa: BLE001  (whatever a constructor raises: the dataset is as good without)
        return {}


def _minari() -> Any:
    try:
        import h5py  # noqa: F401, PLC0415  (an extra)
        import minari  # noqa: PLC0415
        import minari.data_collector  # noqa: PLC0415
        import minari.dataset.minari_storage  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"Minari's format needs a package that is not installed ({error}): pip install 'penstock-rl[minari]'"
        ) from error
    return minari


def _shards(run: RunFolder, table: pa.Table) -> Iterator[Shard]:
    for ref in refs_of(table):
        yield decode_shard(run.store.view(ref.name), None, ref.name, ref.digest)


def _infos(episode: WholeEpisode) -> dict[str, Any]:
    """Return the infos by name, nested at slashes, with one entry more than steps."""
    columns = episode.columns
    steps = len(columns["reward"])
    cut = np.zeros(steps + 1, bool)
    if CUT in columns:
        cut[:steps] = columns[CUT]
    cut[steps - 1] |= episode.cut
    infos: dict[str, Any] = {CUT: cut}
    for name, values in columns.items():
        if name in (*_OWN, CUT) or name.endswith(LAST_SUFFIX):
            continue
        last = columns.get(name + LAST_SUFFIX)
        entries = np.concatenate([values, np.zeros_like(values[:1]) if last is None else last[-1:]])
        *folders, leaf = name.split("/")
        place = infos
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = entries
    return infos


def _flat(infos: Mapping[str, Any] | None, prefix: str = "") -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for name, value in (infos or {}).items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}/")
        else:
            found[prefix + name] = np.asarray(value)
    return found


def _last_infos(dataset: Any) -> set[str]:
    """Return the infos whose last entry is not zero in some episode."""
    return {
        name
        for episode in dataset.iterate_episodes()
        for name, entries in _flat(episode.infos).items()
        if len(entries) == len(episode) + 1 and np.any(entries[-1])
    }


def _own_actions(space: Space[Any], column: NDArray[Any], *, acted: bool) -> Any:
    """Return what Minari stores of a column: the environment's own actions.

    A run's actors store choices from 0, and vectors of structured actions. An imported dataset has its own choices.
    """
    if isinstance(space, Discrete):
        return own_action(space, column) if acted else column
    is_vector = column.dtype == np.float32 and is_structured(space)
    return own_action(space, column) if is_vector else column


def _rows(episode: Any, last_infos: set[str], action_space: Space[Any]) -> dict[str, NDArray[Any]]:
    """Return an episode's columns, and its last observation under a name that no column has."""
    steps = len(episode)
    observations, actions = episode.observations, episode.actions
    if isinstance(action_space, (Dict, Tuple)):
        try:
            actions = stored_action(action_space, actions)
        except UnsupportedActionError as error:
            raise ConfigError(f"episode {episode.id} has actions that no column can hold: {error}") from error
    for name, value in (("observations", observations), ("actions", actions)):
        if not isinstance(value, np.ndarray):
            raise ConfigError(
                f"episode {episode.id} has {name} that are a {type(value).__name__}, expected one array: columns hold "
                "arrays, so flatten the dataset's spaces first"
            )
    rows = {
        "observation": observations[:-1],
        "reward": np.asarray(episode.rewards),
        "terminated": np.asarray(episode.terminations).astype(np.uint8),
        "truncated": np.asarray(episode.truncations).astype(np.uint8),
        "action": actions,
    }
    for name, entries in _flat(episode.infos).items():
        if len(entries) != steps + 1 or name in rows or name.endswith(LAST_SUFFIX):
            raise ConfigError(
                f"episode {episode.id} has the info '{name}' with {len(entries)} entries for {steps} steps, expected "
                f"{steps + 1}, and a name that no column has"
            )
        _refuse_misused(name, entries, episode.id)
        rows[name] = entries[:-1]
        if name in last_infos:
            rows[name + LAST_SUFFIX] = np.zeros_like(entries[:-1])
            rows[name + LAST_SUFFIX][-1] = entries[-1]
    rows.setdefault("env_id", np.zeros(steps, np.int32))
    rows.setdefault("episode_id", np.full(steps, episode.id, np.int32))
    rows.setdefault("policy_version", np.zeros(steps, np.int32))
    return {**rows, LAST: observations[-1:]}


def _refuse_misused(name: str, entries: NDArray[Any], episode: int) -> None:
    """Raise a ConfigError if an info has a name that means something else in columns, and not what it means."""
    expected = ""
    if name == NEXT_OBSERVATION:
        expected = "another name: readers compute it from the observations"
    elif name == CUT and (entries.dtype != np.bool_ or entries.ndim != 1):
        expected = "one boolean a step, or another name: it marks episodes without an end"
    elif name in _NUMBERS and (not np.issubdtype(entries.dtype, np.integer) or entries.ndim != 1):
        expected = "one whole number a step, or another name: every shard has such a column"
    if expected:
        raise ConfigError(
            f"episode {episode} has the info '{name}' of {entries.dtype} {list(entries.shape)}, expected {expected}"
        )


def _run_json(name: str, dataset: Any) -> dict[str, Any]:
    from minari.serialization import serialize_space  # noqa: PLC0415  (an extra)

    source = {
        "dataset_id": str(dataset.id),
        "minari_version": str(dataset.minari_version),
        "observation_space": serialize_space(dataset.observation_space),
        "action_space": serialize_space(dataset.action_space),
    }
    return {
        "format": "penstock-run/1",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": {"name": name, "imported": source},
        "identity": {"imported": source},
        "made_with": {},
        "promise": {"holds": False, "why": "imported from a Minari dataset", "where": "nowhere"},
    }
