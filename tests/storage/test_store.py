"""All stores keep one contract, and each its own part of it."""

import errno
import os
import pickle
import re
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from storage.counts import RequestCounts, request_counts
from storage.errors import ConfigError, ObjectExistsError, ObjectNotFoundError, StoreError
from storage.local_store import LEFTOVER_SECONDS, LocalStore
from storage.store import Store, open_store

from .store_contract import StoreContract

NOBODY_LISTENS = "http://127.0.0.1:9"


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(tmp_path / "store")


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = open_store(f"memory://{uuid.uuid4().hex}")
        yield store
        store.delete(store.list())


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, s3_url: str) -> Store:
        return open_store(s3_url)


def test_urls_of_local_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder may be given as a path, relative too, or as a file url: all mean the same absolute place."""
    monkeypatch.chdir(tmp_path)
    for url in (tmp_path / "runs", str(tmp_path / "runs"), f"file://{tmp_path}/runs", "runs"):
        store = open_store(url)
        assert isinstance(store, LocalStore)
        assert store.url == str(tmp_path / "runs")
    assert store.path("a/b") == tmp_path / "runs" / "a" / "b"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense://bucket/runs", "nonsense"),
        ("ftp://user:secret@host/runs", r"user:\*\*\*@host"),
        ("simplecache::s3://bucket/runs", "chained"),
    ],
)
def test_urls_that_cannot_work_are_refused(url: str, message: str):
    """The error names the url, without the password in it."""
    with pytest.raises(ConfigError, match=message) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_a_folder_below_a_file_is_no_store(tmp_path: Path):
    """Writing fails with an error that names the store; reading finds nothing."""
    (tmp_path / "file").write_bytes(b"content")
    for root in (tmp_path / "file", tmp_path / "file" / "store"):
        store = open_store(root)
        for write in (store.create, lambda name, data, store=store: store.write(name, [data])):
            with pytest.raises(StoreError, match=f"'{root}'") as failed:
                write("object", b"content")
            assert not isinstance(failed.value, ObjectExistsError | ObjectNotFoundError)
        assert not store.exists("object")
        assert store.list() == []
    assert (tmp_path / "file").read_bytes() == b"content"


def test_local_listings_hide_half_written_files(tmp_path: Path):
    """A killed writer's file is in no listing, and goes when it is a day old; a young one may still be written."""
    store = open_store(tmp_path)
    store.write("shards/a.arrow", [b"content"])
    young, old = tmp_path / "shards" / ".tmp-young", tmp_path / "shards" / ".tmp-old"
    for file in (young, old):
        file.write_bytes(b"half")
    then = time.time() - LEFTOVER_SECONDS - 60
    os.utime(old, (then, then))
    assert store.list() == ["shards/a.arrow"]
    assert young.exists()
    assert not old.exists()


def test_a_failed_local_write_changes_nothing(tmp_path: Path):
    """A full disk (a file size limit stands for it) keeps the old content and leaves no half-written file."""
    program = f"""
import resource
from storage.errors import StoreError
from storage.store import open_store
store = open_store({str(tmp_path)!r})
store.write("object", [b"old"])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for write in (lambda: store.write("object", [b"x" * 600, b"y" * 600]), lambda: store.create("other", b"x" * 1200)):
    try:
        write()
    except StoreError as error:
        assert {str(tmp_path)!r} in str(error), error
    else:
        raise SystemExit("the write was not refused")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["object"]
    assert (tmp_path / "object").read_bytes() == b"old"


def test_local_parts_beyond_one_system_call(tmp_path: Path):
    """More parts than the kernel takes at once are all written, in order."""
    store = open_store(tmp_path)
    parts = [index.to_bytes(2, "little") for index in range(3000)]
    store.write("object", parts)
    assert store.read("object") == b"".join(parts)


def test_local_folders_come_and_go(tmp_path: Path):
    """A folder that vanished is made again, and one that became empty goes with its last object."""
    store = open_store(tmp_path / "store")
    store.write("a/b/one", [b"1"])
    store.delete(["a/b/one"])
    assert list((tmp_path / "store").iterdir()) == []
    (tmp_path / "store").rmdir()
    store.create("a/b/two", b"2")
    assert store.list() == ["a/b/two"]


def test_local_files_have_ordinary_permissions(tmp_path: Path):
    """Objects are as readable for others as the process's umask says."""
    previous = os.umask(0o027)
    try:
        store = open_store(tmp_path)
        store.write("written", [b""])
        store.create("created", b"")
    finally:
        os.umask(previous)
    for name in ("written", "created"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640


@pytest.mark.usefixtures("s3_url")
def test_a_service_that_is_gone_is_named():
    """Nobody listens: a call gives up after a few attempts with an error that names the store, not the key."""
    store = open_store("s3://bucket/runs", endpoint_url=NOBODY_LISTENS, key="my-key", secret="my-secret")
    for use in (lambda: store.create("object", b"content"), lambda: store.exists("object")):
        with pytest.raises(StoreError, match=r"'s3://bucket/runs' after \d attempts") as failed:
            use()
        assert not isinstance(failed.value, ObjectExistsError | ObjectNotFoundError)
        assert "my-" not in str(failed.value) + repr(store)


class FailingFileSystem(MemoryFileSystem):
    """A service that fails twice before it answers."""

    protocol = "failing"
    failures = 2

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "not now")
        return super().cat_file(path, *args, **kwargs)


def test_retries_are_counted():
    """Attempts beyond the first are told apart, and stores below a folder count together."""
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    root = open_store("failing://store")
    store = root.at("runs")
    store.write("object", [b"content"])
    assert request_counts(store) == RequestCounts(requests=1)
    assert store.read("object") == b"content"
    assert request_counts(store) == request_counts(root) == RequestCounts(requests=4, retries=2)
    store.delete(["object"])


@pytest.mark.parametrize(
    "options", [{"key": "my-key", "secret": "my-secret"}, {"client_kwargs": {"aws_secret_access_key": "my-secret"}}]
)
def test_credentials_stay_out_of_pickles(options: dict[str, Any]):
    """A store that was given credentials refuses to travel, and says where they belong, not what they are."""
    store = open_store("s3://bucket/runs", **options)
    with pytest.raises(ConfigError, match="into the environment") as refused:
        pickle.dumps(store)
    assert "my-" not in str(refused.value)


@pytest.mark.usefixtures("s3_url")
def test_a_bucket_that_is_not_there():
    """Writing says that the bucket may not exist, at once."""
    with pytest.raises(StoreError, match=r"'s3://no-such-bucket/runs': .*check .*bucket"):
        open_store("s3://no-such-bucket/runs").write("object", [b"content"])


def test_s3_ranges_are_one_request(s3_url: str, s3_server):
    """A ranged read asks for those bytes, once, and for nothing before it."""
    store = open_store(s3_url)
    store.write("ranged", [bytes(200_000)])
    store.read_range("ranged", 0, 10)
    store.read_range("ranged", 100_000, 200_000)
    requests = [line for line in s3_server.log.read_text().splitlines() if f"{s3_url[4:]}/ranged " in line]
    assert [re.search(r'"(\w+) ', line).group(1) for line in requests] == ["PUT", "GET", "GET"]


def test_s3_deletes_more_than_one_request_takes(s3_url: str):
    """Bulk deletion goes on after S3's limit of 1000 objects a request."""
    store = open_store(s3_url)
    store.write("last", [b"content"])
    store.delete([*(f"nothing/{index}" for index in range(1000)), "last"])
    assert store.list() == []


def test_s3_stores_work_after_a_fork(s3_url: str):
    """A child process opens connections of its own instead of waiting for its parent's I/O thread."""
    program = f"""
import os
from storage.store import open_store
store = open_store({s3_url!r})
store.write("parent", [b"content"])
child = os.fork()
if child == 0:
    os._exit(0 if store.read("parent") == b"content" else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
