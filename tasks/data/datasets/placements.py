"""Records placements as episodes: a run of the placement environment whose actions put macros where they stand.

Nothing learned acts. Readers and replays take such a run like one that a policy has acted.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from penstock.native.floorplan import PlacementCost, cells_of
from penstock.storage.errors import ConfigError
from penstock.tasks.data.datasets.stored_episodes import LAST, commit_episodes, write_episodes, written_as
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.floorplan_blocks import open_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock.native.floorplan import EpisodeCells
    from penstock.storage.refs import ShardRef
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.setup.config.run import TrainConfig

FINISHED = "recorded from placements"


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode, and where it differs from the placement that it was made of."""

    block: int
    placement: str
    episode_return: float
    """Minus the weighted cost with soft macros placed by forces and macros not turned."""
    macros: int
    moved: int
    """Macros that stand elsewhere than in the placement, on the nearest cell that the environment allowed."""
    most_moved_um: float


def record_placements(
    run: RunFolder, config: TrainConfig, description: Mapping[str, Any], placements: Sequence[Sequence[Path]]
) -> list[RecordedEpisode]:
    """Write placements as a finished run of one stage, a shard for each block.

    The same files give the same bytes; a call that was stopped is repeated.

    Args:
        run: the run to create.
        config: of that run, with the blocks' digests.
        description: what `run.json` says of it.
        placements: for each block of the configuration at least one.

    Raises:
        ConfigError: a placement can't be read, or is none of an episode, as `cells_of` says.
        RunExistsError: there is another run of that name.
        LeaseHeldError: another command makes the run.
    """
    with written_as(run, description, "placements") as check:
        refs, recorded = _write_shards(run, config, placements)
        commit_episodes(run, description, refs, len(recorded), FINISHED, check)
    return recorded


def _write_shards(
    run: RunFolder, config: TrainConfig, placements: Sequence[Sequence[Path]]
) -> tuple[list[ShardRef], list[RecordedEpisode]]:
    blocks = open_blocks(config.environment)
    cells = [[_cells(block, file) for file in files] for block, files in zip(blocks, placements, strict=True)]
    played = _played(config, [[one.cells for one in of_block] for of_block in cells])
    refs, recorded = [], []
    for number, (episodes, of_block, files) in enumerate(zip(played, cells, placements, strict=True)):
        returns = [float(rows.pop("return")[0]) for rows in episodes]
        refs.append(write_episodes(run, number, episodes, config.environment.id, returns))
        recorded += [
            RecordedEpisode(number, str(file), return_, len(one.cells), len(one.moved), one.most_moved_um)
            for file, return_, one in zip(files, returns, of_block, strict=True)
        ]
    return refs, recorded


def _cells(block: PlacementCost, file: Path) -> EpisodeCells:
    try:
        plc = PlacementCost(block)
        plc.restore_placement(file)
        return cells_of(plc)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from None


def _played(config: TrainConfig, cells: Sequence[Sequence[tuple[int, ...]]]) -> list[list[dict[str, NDArray[Any]]]]:
    """Play each block's episodes one after another in one pool; return their columns by block and episode.

    An environment whose episodes are over plays them again, since all environments of a pool are stepped together.
    """
    # The step after an episode's end is the reset, whose action is not looked at.
    actions = [np.array([cell for one in of_block for cell in (*one, 0)]) for of_block in cells]
    kept: list[list[tuple[Any, ...]]] = [[] for _ in cells]
    with closing(make_pool(config, len(cells), AutoresetMode.NEXT_STEP)) as pool:
        observation, _ = pool.reset(seed=config.seed)
        for step in range(max(map(len, actions))):
            chosen = np.array([own[step % len(own)] for own in actions])
            seen = observation.copy()
            observation, reward, terminated, truncated, _ = pool.step(chosen)
            for env, own in enumerate(actions):
                if step < len(own):
                    kept[env].append((seen[env], chosen[env], reward[env], terminated[env], truncated[env]))
    return [_episodes(env, of_block, kept[env]) for env, of_block in enumerate(cells)]


def _episodes(
    env: int, cells: Sequence[tuple[int, ...]], steps: Sequence[tuple[Any, ...]]
) -> list[dict[str, NDArray[Any]]]:
    """Return the columns of each episode; after its steps comes the one that reset, which observed its end."""
    episodes, first = [], 0
    for number, one in enumerate(cells):
        last = first + len(one)
        seen, action, reward, terminated, truncated = map(np.array, zip(*steps[first:last], strict=True))
        count = len(one)
        episodes.append(
            {
                "observation": seen,
                "reward": reward.astype(np.float32),
                "terminated": terminated.astype(np.uint8),
                "truncated": truncated.astype(np.uint8),
                "action": action.astype(np.int64),
                "env_id": np.full(count, env, np.int32),
                "episode_id": np.full(count, number, np.int32),
                "policy_version": np.zeros(count, np.int32),
                "return": np.array([float(reward.sum())]),
                LAST: steps[last][0][None],
            }
        )
        first = last + 1
    return episodes
