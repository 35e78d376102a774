"""Checks of what must hold at every moment of a schedule, and at its end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.storage.digest import digest
from penstock.storage.runs.commits import parse_commit_name
from penstock.tasks.simulation import payloads
from penstock.tasks.simulation.cluster import RUN
from penstock.tasks.simulation.memory import check_once, decode_once

if TYPE_CHECKING:
    from penstock.storage.refs import Ref
    from penstock.storage.runs.commit_schema import Commit
    from penstock.tasks.simulation.store import Bucket

_PREFIX = f"{RUN}/"
_RETENTION = f"{RUN}/retention.json"
_EXTENSIONS = f"{RUN}/extensions/"


class ViolationError(AssertionError):
    """Something that must always hold does not."""


class RunChecks:
    """Watches the bucket of a run.

    Args:
        genesis: parent of the first commit.
        expected: commits of an undisturbed run by stage, whose bytes must come; None if which shards are learned from
            depends on time.
        tiles: of the run.
        stages: of the run, with an extension if it has one.
    """

    def __init__(self, genesis: str, expected: dict[int, bytes] | None, tiles: int, stages: int) -> None:
        self.commits: dict[int, bytes] = {}
        self.committed_at: list[float] = []
        self.finished = False
        """True once the newest commit ends the run."""
        self._genesis = genesis
        self._expected = expected
        self._tiles = tiles
        self._stages = stages
        self._extensions: dict[str, bytes] = {}
        self._shards: set[str] = set()
        self._state: set[str] = set()
        self._params = payloads.first_params()
        self._tile_states = {tile: payloads.first_state(tile) for tile in range(tiles)}
        self._kept_from = 0
        self.bucket: Bucket

    def changed(self, name: str, content: bytes | None) -> None:
        """Check a change of the bucket: an object was created, replaced, or removed (None)."""
        if not name.startswith(_PREFIX):
            return
        stage = parse_commit_name(name.removeprefix(_PREFIX))
        if stage is not None:
            self._commit_changed(stage, name, content)
        elif name == _RETENTION and content:
            self._kept_from = max(self._kept_from, int(re.findall(rb'"shards_from_stage":(\d+)', content)[0]))
            dropped = {
                ref.name
                for stage, data in self.commits.items()
                if stage < self._kept_from
                for ref in self._decode(stage, data).shards
            }
            self._shards -= {_PREFIX + one for one in dropped}
        elif name.startswith(_EXTENSIONS):
            if self._extensions.setdefault(name, content or b"") != content:
                raise ViolationError(f"'{name}' was {'replaced' if content else 'removed'}")
        elif name in self._shards or name in self._state:
            if content is None:
                raise ViolationError(f"'{name}' was removed, and the newest commit or a kept shard needs it")
            if not _is_right(name, content):
                raise ViolationError(f"'{name}' was damaged after a commit named it ({len(content)} bytes)")

    def check_copy(self, copied: Bucket) -> None:
        """Check that a complete copy has all commits up to its newest, unchanged, and their shards."""
        names = [name for name in copied.objects if parse_commit_name(name.removeprefix(_PREFIX)) is not None]
        for name in names:
            stage = parse_commit_name(name.removeprefix(_PREFIX))
            assert stage is not None
            data = copied.objects[name].content
            if data != self.commits.get(stage):
                raise ViolationError(f"the copy has another '{name}'")
            for ref in self._decode(stage, data).shards:
                if _PREFIX + ref.name in self._shards and _PREFIX + ref.name not in copied.objects:
                    raise ViolationError(f"the copy lacks '{ref.name}', which its commit names")

    def check_end(self) -> None:
        """Check that everything that is needed is there, whole."""
        for name in (*self._shards, *self._state):
            found = self.bucket.objects.get(name)
            if found is None or not _is_right(name, found.content):
                raise ViolationError(f"'{name}' is {'damaged' if found else 'missing'} at the end")

    def _commit_changed(self, stage: int, name: str, content: bytes | None) -> None:
        known = self.commits.get(stage)
        if known is not None:
            if content != known:
                raise ViolationError(f"'{name}' was {'replaced' if content else 'removed'}")
            return
        if content is None:
            raise ViolationError(f"'{name}' was removed")
        if stage != len(self.commits):
            raise ViolationError(f"'{name}' follows {len(self.commits)} commits")
        if self._expected is not None and content != self._expected[stage]:
            raise ViolationError(f"'{name}' has other bytes than in an undisturbed run")
        commit = self._decode(stage, content)
        if commit.parent != (digest(self.commits[stage - 1]) if stage else self._genesis):
            raise ViolationError(f"'{name}' names another parent than the commit before")
        self._check_rows(commit)
        self.commits[stage] = content
        self.committed_at.append(self.bucket.world.now)
        self.finished = commit.finished is not None and stage + 1 == self._stages
        self._shards |= {_PREFIX + ref.name for ref in commit.shards}
        self._state = {_PREFIX + ref.name for ref in commit.resumed_from}
        for ref in commit.references():
            self._check_durable(ref)

    def _check_durable(self, ref: Ref) -> None:
        found = self.bucket.objects.get(_PREFIX + ref.name)
        if found is None:
            raise ViolationError(f"a commit names '{ref.name}', which does not exist")
        check_once(found.content, ref)
        if found.durable != found.content:
            raise ViolationError(f"a commit names '{ref.name}', which would not survive a power cut")

    def _check_rows(self, commit: Commit) -> None:
        """Check that the commit's parameters were learned from its shards, each once, and in order."""
        for round_ in range(commit.rounds[0], commit.rounds[1] + 1):
            refs = [ref for ref in commit.shards if ref.round == round_]
            tiles = [ref.tile for ref in refs]
            if tiles != sorted(set(tiles)) or not tiles or (self._expected is not None and len(tiles) != self._tiles):
                raise ViolationError(f"stage {commit.stage} learned round {round_} from the tiles {tiles}")
            self._params = payloads.learned_params(self._params, (ref.digest for ref in refs))
        newest = payloads.snapshot_file(commit.version, self._params)
        if commit.snapshots[-1].digest != digest(newest):
            raise ViolationError(f"stage {commit.stage}: its newest snapshot was not learned from its shards")
        if commit.checkpoint.digest != digest(payloads.checkpoint_file(commit.stage, self._params)):
            raise ViolationError(f"stage {commit.stage}: its checkpoint was not learned from its shards")
        if [state.tile for state in commit.states] != list(range(self._tiles)):
            raise ViolationError(f"stage {commit.stage} has states of {[state.tile for state in commit.states]}")

    def _decode(self, stage: int, data: bytes) -> Commit:
        return decode_once(data, f"commits/{stage:08d}.json", stage)


def _is_right(name: str, content: bytes) -> bool:
    """Return whether the content is that of the digest in the name; shards hold theirs, and are compared by size."""
    if name.endswith(".arrow"):
        return len(content) > 0
    return digest(content) in name
