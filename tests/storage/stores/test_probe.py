"""The probe distinguishes stores by trying them."""

import logging
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.storage.errors import StoreError
from penstock.storage.stores.open import open_store
from penstock.storage.stores.probe import StoreGuarantees, always_has_one_winner, probe, require_writable

from ...support.stored.faulty import Fault, FaultyStore


class ForgetfulFileSystem(MemoryFileSystem):
    """Ignores conditions of creation and overwrites instead, as some S3 servers do."""

    protocol = "forgetful"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        super().pipe_file(path, value, **kwargs)


class RangelessFileSystem(MemoryFileSystem):
    """Ignores ranges and returns the whole object instead."""

    protocol = "rangeless"

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        return super().cat_file(path, **kwargs)


@pytest.fixture(params=["local", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return request.getfixturevalue("s3_url")
    return str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


def test_good_stores_keep_all_promises(url: str):
    """A folder, memory and S3 create exclusively; the probe leaves nothing behind."""
    store = open_store(url)
    store.write("run.json", [b"{}"])
    assert probe(store) == StoreGuarantees(writable=True, exclusive_create=True)
    assert store.list() == ["run.json"]


class NeverDeletes(MemoryFileSystem):
    """A store whose credentials may not delete, as those of backups."""

    protocol = "backups"

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        raise PermissionError("AccessDenied")


def test_a_store_that_deletes_nothing_is_writable():
    """So a run can be copied to it."""
    fsspec.register_implementation("backups", NeverDeletes, clobber=True)
    require_writable(open_store(f"backups://{uuid.uuid4().hex}"))


def test_a_store_that_overwrites_is_detected(caplog: pytest.LogCaptureFixture):
    """A second create that succeeds is reported and logged, and cleaned up."""
    fsspec.register_implementation("forgetful", ForgetfulFileSystem, clobber=True)
    store = open_store("forgetful://runs")
    with caplog.at_level(logging.WARNING):
        assert probe(store) == StoreGuarantees(writable=True, exclusive_create=False)
    assert "forgetful://runs" in caplog.text
    assert store.list() == []


def test_more_races_find_a_store_that_was_lucky_in_the_first(tmp_path: Path):
    """Its races have several winners now and then alone; more of them show it, and nothing is left behind."""
    lucky = FaultyStore(open_store(tmp_path), [Fault("forget", ("create",), "*/raced-5", calls=None)])
    assert probe(lucky) == StoreGuarantees(writable=True, exclusive_create=True)
    assert not always_has_one_winner(lucky)
    lucky.heal()
    assert always_has_one_winner(lucky)
    assert lucky.list() == []


@pytest.mark.slow
def test_swift_is_never_taken_for_exclusive(swift_url: str):
    """One race in four has a single winner there, of many hardly any do."""
    assert not any(always_has_one_winner(open_store(swift_url)) for _ in range(5))


@pytest.mark.parametrize("name", ["created", "raced"])
def test_a_retry_that_finds_its_own_object_is_no_fault(tmp_path: Path, name: str):
    """A create whose answer was lost is repeated by the client and refused: the store is exclusive all the same."""
    store = FaultyStore(open_store(tmp_path), [Fault("repeat", ("create",), f"*/{name}")])
    assert probe(store) == StoreGuarantees(writable=True, exclusive_create=True)
    assert store.met
    assert store.list() == []


def test_a_store_without_ranges_is_refused():
    """A reader of columns would get other bytes; the probe cleans up nevertheless."""
    fsspec.register_implementation("rangeless", RangelessFileSystem, clobber=True)
    store = open_store("rangeless://runs")
    with pytest.raises(StoreError, match=r"'rangeless://runs' returned 32 bytes for the range \[5, 21\)"):
        probe(store)
    assert store.list() == []


def test_a_store_that_cannot_be_written_is_refused(tmp_path: Path):
    """The error names the store."""
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(StoreError, match=str(tmp_path / "file")):
        probe(open_store(tmp_path / "file" / "store"))


@pytest.mark.usefixtures("s3_url")
def test_a_service_that_is_gone_is_refused():
    """The error names the store, after a few attempts."""
    with pytest.raises(StoreError, match=r"s3://bucket/runs"):
        probe(open_store("s3://bucket/runs", endpoint_url="http://127.0.0.1:9"))
