"""The node's cache downloads once, keeps within its limit, and never gives wrong content."""

import logging
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from storage.cache import NodeCache
from storage.digest import digest
from storage.errors import CorruptObjectError, ObjectNotFoundError, StoreError
from storage.refs import Ref
from storage.store import Store, open_store

LIMIT_BYTES = 1_000_000


@pytest.fixture
def store(s3_url: str) -> Store:
    return open_store(s3_url)


@pytest.fixture
def cache(tmp_path: Path) -> NodeCache:
    return NodeCache(tmp_path / "cache", LIMIT_BYTES)


def put(store: Store, name: str, content: bytes) -> Ref:
    store.write(name, [content])
    return Ref(name, digest(content), len(content))


def downloads(log: Path, name: str) -> int:
    """Of one object, by the server's own log."""
    return sum('"GET ' in line and f"/{name} " in line for line in log.read_text().splitlines())


def cached(cache: NodeCache) -> set[str]:
    return {file.name for file in cache.folder.iterdir() if file.is_file()}


def test_processes_of_a_node_share_one_download(s3_server, s3_url: str, store: Store, tmp_path: Path):
    """Four processes that ask for the same object at once get it with one request to the service."""
    content = os.urandom(2_000_000)
    ref = put(store, "shared-by-four", content)
    program = f"""
import sys
from pathlib import Path
from storage.cache import NodeCache
from storage.digest import digest
from storage.refs import Ref
from storage.store import open_store
ref = Ref({ref.name!r}, {ref.digest!r}, {ref.nbytes})
store, cache = open_store({s3_url!r}), NodeCache(Path({str(tmp_path / "cache")!r}), 10_000_000)
store.exists("warm")
print("ready", flush=True)
sys.stdin.readline()
assert digest(cache.get(store, ref).read_bytes()) == ref.digest
assert digest(cache.get_buffer(store, ref)) == ref.digest
"""
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert downloads(s3_server.log, "shared-by-four") == 1


def test_cached_content_needs_no_service(s3_server, store: Store, cache: NodeCache):
    """A second reader, here a copy by pickle, finds the file; its buffer is private and writable."""
    content = b"content" * 1000
    ref = put(store, "read-twice", content)
    assert cache.get(store, ref).read_bytes() == content
    copy = pickle.loads(pickle.dumps(cache))
    buffer = copy.get_buffer(store, ref)
    buffer[0] = 0
    assert bytes(buffer[1:]) == content[1:]
    assert bytes(copy.get_buffer(store, ref)) == content
    assert cache.get(store, ref).read_bytes() == content
    assert downloads(s3_server.log, "read-twice") == 1


def test_local_objects_are_used_where_they_lie(tmp_path: Path, cache: NodeCache):
    """Nothing is copied from a local store."""
    store = open_store(tmp_path / "store")
    ref = put(store, "object", b"content")
    assert cache.get(store, ref) == tmp_path / "store" / "object"
    assert bytes(cache.get_buffer(store, ref)) == b"content"
    assert not cache.folder.exists()


def test_altered_objects_are_refused(store: Store, cache: NodeCache):
    """A stored object that does not match its digest is named and never cached."""
    ref = put(store, "object", b"content")
    store.write("object", [b"contenT"])
    for get in (cache.get, cache.get_buffer):
        with pytest.raises(CorruptObjectError, match=rf"'object' .*{digest(b'contenT')}.* expected {ref.digest}"):
            get(store, ref)
    assert cached(cache) == set()


def test_missing_objects_are_named(store: Store, cache: NodeCache):
    """A reference to nothing says so."""
    for get in (cache.get, cache.get_buffer):
        with pytest.raises(ObjectNotFoundError, match="'object'"):
            get(store, Ref("object", digest(b""), 0))


def test_damaged_cache_files_are_replaced(store: Store, cache: NodeCache):
    """What a power cut left under the right name is not trusted by a process that meets it for the first time."""
    ref = put(store, "object", b"content")
    for damaged in (b"\0" * 7, b"cont", b""):
        cache.folder.mkdir(exist_ok=True)
        (cache.folder / ref.digest).write_bytes(damaged)
        fresh = NodeCache(cache.folder, LIMIT_BYTES)
        assert bytes(fresh.get_buffer(store, ref)) == b"content"
        assert fresh.get(store, ref).read_bytes() == b"content"


def test_least_recently_used_files_go(store: Store, cache: NodeCache):
    """Beyond the limit the files that were not used for longest are removed; an object above the limit stays alone."""
    refs = [put(store, f"object-{index}", bytes([index]) * 400_000) for index in range(3)]
    for age, ref in ((300, refs[0]), (200, refs[1])):
        file = cache.get(store, ref)
        used = file.stat().st_mtime - age
        os.utime(file, (used, used))
    first = cache.get_buffer(store, refs[0])  # used again: the second is the oldest now
    cache.get(store, refs[2])
    assert cached(cache) == {refs[0].digest, refs[2].digest}

    huge = put(store, "huge", b"h" * (LIMIT_BYTES + 1))
    cache.get(store, huge)
    assert cached(cache) == {huge.digest}
    assert bytes(first) == bytes([0]) * 400_000  # a mapping outlives its file
    assert bytes(cache.get_buffer(store, refs[1])) == bytes([1]) * 400_000


def test_leftovers_of_killed_downloads_go(store: Store, cache: NodeCache):
    """Old half-written files are removed; young ones may still be written."""
    cache.folder.mkdir()
    old, young = cache.folder / "x.1-0.part", cache.folder / "x.2-0.part"
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    ref = put(store, "object", b"content")
    cache.get(store, ref)
    assert cached(cache) == {ref.digest, young.name}


def test_a_full_disk_costs_speed_only(store: Store, cache: NodeCache, caplog: pytest.LogCaptureFixture):
    """If the cache can't write (a file size limit stands for a full disk), buffers come from the store: one warning."""
    contents = [bytes([index]) * 200_000 for index in range(3)]
    refs = [put(store, f"object-{index}", content) for index, content in enumerate(contents)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with caplog.at_level(logging.WARNING, logger="storage.cache"):
            found = [bytes(cache.get_buffer(store, ref)) for ref in refs]
        with pytest.raises(StoreError, match=str(cache.folder)):
            cache.get(store, refs[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found == contents
    assert [str(cache.folder) in record.message for record in caplog.records] == [True]
    assert cached(cache) == set()
    assert cache.get(store, refs[0]).read_bytes() == contents[0]


def test_a_cache_below_a_file_costs_speed_only(store: Store, tmp_path: Path):
    """A cache whose folder can't be made still gives right content."""
    (tmp_path / "file").write_bytes(b"")
    ref = put(store, "object", b"content")
    assert bytes(NodeCache(tmp_path / "file" / "cache", LIMIT_BYTES).get_buffer(store, ref)) == b"content"
