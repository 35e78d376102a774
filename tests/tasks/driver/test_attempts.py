"""An attempt that was given up is over for whoever comes after, and the reason stays readable."""

import json
from pathlib import Path

import pytest

from penstock.storage.errors import CorruptObjectError, LeaseLostError, StageMismatchError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.attempts import current_attempt, give_up, repeat_until_done

NAME = "attempts/00000003.json"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(open_store(str(tmp_path / "root")), "small")


def test_a_stage_begins_with_attempt_zero(run: RunFolder):
    """Nothing needs to be stored for it."""
    assert current_attempt(run, 3) == 0
    assert run.store.list("attempts/") == []


def test_giving_up_starts_the_next_attempt(run: RunFolder):
    """For that stage alone, and for every process that opens the run."""
    give_up(run, 3, 0, "shards differ")
    assert current_attempt(run, 3) == 1
    give_up(run, 3, 1, "they differ again")
    again = RunFolder(open_store(run.store.url.removesuffix("/small")), "small")
    assert current_attempt(again, 3) == 2
    assert [current_attempt(run, stage) for stage in (2, 4, 30)] == [0, 0, 0]
    assert json.loads(run.store.read(NAME))["reason"] == "they differ again"


def test_giving_up_twice_is_giving_up_once(run: RunFolder):
    """Two processes that see the same mismatch do not skip an attempt."""
    give_up(run, 3, 0, "seen here")
    give_up(run, 3, 0, "seen there")
    assert current_attempt(run, 3) == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"attempt": null}', b'{"attempt": "x"}', b'{"attempt": -3}', b"[" * 100_000]
)
def test_a_damaged_file_is_named_with_what_to_write(run: RunFolder, content: bytes):
    """Guessing an attempt could mix two, so nothing is guessed."""
    run.store.write(NAME, [content])
    with pytest.raises(CorruptObjectError, match=r"attempts/00000003\.json.*run 'small'.*\"attempt\": n"):
        current_attempt(run, 3)


def test_a_flow_that_lost_its_lease_gives_up_nothing(run: RunFolder):
    """The attempt is that of the flow which has taken the run over."""
    tries: list[int] = []

    def mismatch(attempt: int, _: bool) -> None:
        tries.append(attempt)
        raise StageMismatchError("round 2 is stored otherwise")

    def check() -> None:
        if tries:
            raise LeaseLostError("another flow drives the run")

    with pytest.raises(LeaseLostError):
        repeat_until_done(run, 3, mismatch, is_first=True, check=check)
    assert tries == [0]
    assert run.store.list("attempts/") == []
