"""Measures one library's reading: its own writer stores trajectories, and torch batches are read as it documents.

    python benchmarks/peers/shards_read.py LIBRARY DATA OUT --batch-rows 1024 --epochs 3

DATA is a folder with one .npy file per column, with rows in order of time. Every library reads in one process, without
worker processes and without shuffling. The first epoch is not timed. Prints one line of JSON: rows per second of each
epoch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Columns = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=list(LIBRARIES))
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch-rows", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    columns = {file.stem: np.load(file) for file in sorted(args.data.glob("*.npy"))}
    rows = len(columns["reward"])
    args.out.mkdir(parents=True)
    epoch = LIBRARIES[args.library](columns, args.out, args.batch_rows)
    del columns
    found = []
    for _ in range(args.epochs + 1):
        started = time.perf_counter()
        read = sum(len(batch["reward"]) for batch in epoch())
        found.append(rows / (time.perf_counter() - started))
        assert read == rows, f"{read} rows, expected {rows}"
    print(json.dumps({"rows_per_second": found[1:]}))


def webdataset(columns: Columns, out: Path, batch_rows: int) -> Callable[[], Iterable[Any]]:
    import webdataset as wds  # noqa: PLC0415  (only in its own environment)

    with wds.ShardWriter(str(out / "rows-%06d.tar"), maxsize=64 << 20, verbose=0) as writer:
        for row in range(len(columns["reward"])):
            writer.write({"__key__": f"{row:09d}", **{f"{name}.npy": values[row] for name, values in columns.items()}})
    urls = [str(file) for file in sorted(out.glob("*.tar"))]
    names = list(columns)

    def epoch() -> Iterable[Any]:
        dataset = wds.WebDataset(urls, shardshuffle=False).decode().to_tuple(*(f"{name}.npy" for name in names))
        for batch in dataset.batched(batch_rows):
            yield {name: torch.as_tensor(np.asarray(values)) for name, values in zip(names, batch, strict=True)}

    return epoch


def _without_torchvision() -> None:
    """Replace torchvision if its build does not match torch's; `streaming` needs it only for image datasets."""
    try:
        import torchvision  # noqa: F401, PLC0415
    except (ImportError, RuntimeError):
        for name in [loaded for loaded in sys.modules if loaded.startswith("torchvision")]:
            del sys.modules[name]
        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            sys.modules[f"torchvision{name}"] = module = ModuleType(f"torchvision{name}")
            module.__spec__ = ModuleSpec(module.__name__, None)
            module.__path__ = []
            module.__file__ = __file__
            module.__getattr__ = lambda _: object  # type: ignore[method-assign]


def streaming(columns: Columns, out: Path, batch_rows: int) -> Callable[[], Iterable[Any]]:
    _without_torchvision()
    from streaming import MDSWriter, StreamingDataset  # noqa: PLC0415  (only in its own environment)

    types = {
        name: f"ndarray:{values.dtype}:{','.join(map(str, values.shape[1:])) or '1'}"
        for name, values in columns.items()
    }
    with MDSWriter(out=str(out), columns=types, size_limit=64 << 20) as writer:
        for row in range(len(columns["reward"])):
            writer.write({name: values[row].reshape(values.shape[1:] or (1,)) for name, values in columns.items()})
    dataset = StreamingDataset(local=str(out), shuffle=False, batch_size=batch_rows)
    return lambda: torch.utils.data.DataLoader(dataset, batch_size=batch_rows)


def litdata(columns: Columns, out: Path, batch_rows: int) -> Callable[[], Iterable[Any]]:
    from litdata import StreamingDataLoader, StreamingDataset  # noqa: PLC0415  (only in its own environment)
    from litdata.streaming.writer import BinaryWriter  # noqa: PLC0415

    writer = BinaryWriter(str(out), chunk_bytes=64 << 20)
    for row in range(len(columns["reward"])):
        writer[row] = {name: torch.as_tensor(values[row]) for name, values in columns.items()}
    writer.done()
    writer.merge()
    return lambda: StreamingDataLoader(StreamingDataset(str(out)), batch_size=batch_rows)


def minari(columns: Columns, out: Path, batch_rows: int) -> Callable[[], Iterable[Any]]:
    """Join the episodes that Minari's reader returns to batches of at least `batch_rows` rows."""
    import minari as library  # noqa: PLC0415  (only in its own environment)
    from gymnasium import spaces  # noqa: PLC0415
    from minari.data_collector import EpisodeBuffer  # noqa: PLC0415
    from minari.dataset.minari_storage import MinariStorage  # noqa: PLC0415

    observation = columns["observation"]
    low, high = (0, 255) if observation.dtype == np.uint8 else (-np.inf, np.inf)
    box = spaces.Box(low, high, observation.shape[1:], observation.dtype)
    storage = MinariStorage.new(
        out / "data",
        observation_space=box,
        action_space=spaces.Discrete(1 << 20),
        data_format="arrow",
        jpeg_encoding=False,
    )
    storage.update_metadata({"dataset_id": "rows-v0", "minari_version": library.__version__})
    ends = np.flatnonzero(columns["terminated"]) + 1
    starts = [0, *ends[:-1].tolist()]
    storage.update_episodes(
        EpisodeBuffer(
            id=index,
            observations=np.concatenate([observation[start:stop], observation[stop - 1 : stop]]),
            actions=columns["action"][start:stop],
            rewards=columns["reward"][start:stop],
            terminations=columns["terminated"][start:stop] != 0,
            truncations=columns["truncated"][start:stop] != 0,
        )
        for index, (start, stop) in enumerate(zip(starts, ends.tolist(), strict=True))
    )
    dataset = library.MinariDataset(out / "data")

    def epoch() -> Iterable[Any]:
        held: list[Any] = []
        rows = 0
        for episode in dataset.iterate_episodes():
            held.append(episode)
            rows += len(episode)
            if rows >= batch_rows:
                yield join(held)
                held, rows = [], 0
        if held:
            yield join(held)

    def join(episodes: list[Any]) -> dict[str, torch.Tensor]:
        parts = {
            "observation": [episode.observations[:-1] for episode in episodes],
            "action": [episode.actions for episode in episodes],
            "reward": [episode.rewards for episode in episodes],
            "terminated": [episode.terminations for episode in episodes],
            "truncated": [episode.truncations for episode in episodes],
        }
        return {name: torch.from_numpy(np.concatenate(values)) for name, values in parts.items()}

    return epoch


def parquet(columns: Columns, out: Path, batch_rows: int) -> Callable[[], Iterable[Any]]:
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet as pq  # noqa: PLC0415

    arrays = {}
    for name, values in columns.items():
        flat = pa.array(values.reshape(-1))
        width = int(np.prod(values.shape[1:]))
        arrays[name] = pa.FixedSizeListArray.from_arrays(flat, width) if values.ndim > 1 else flat
    shapes = {name: values.shape[1:] for name, values in columns.items()}
    rows = max(1, (64 << 20) * len(columns["reward"]) // sum(values.nbytes for values in columns.values()))
    pq.write_table(pa.table(arrays), out / "rows.parquet", row_group_size=rows)

    def epoch() -> Iterable[Any]:
        for batch in pq.ParquetFile(out / "rows.parquet").iter_batches(batch_size=batch_rows):
            found = {}
            for name, shape in shapes.items():
                column = batch.column(name)
                values = column.flatten() if shape else column
                # Copy into tensors with their own memory, as the other libraries do.
                found[name] = torch.tensor(values.to_numpy(zero_copy_only=False).reshape(-1, *shape))
            yield found

    return epoch


LIBRARIES = {
    "webdataset": webdataset,
    "streaming": streaming,
    "litdata": litdata,
    "minari": minari,
    "parquet": parquet,
}

if __name__ == "__main__":
    main()
