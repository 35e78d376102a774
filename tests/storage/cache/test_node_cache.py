"""The node's cache downloads once, stays within its limit, and never returns wrong content."""

import fcntl
import json
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.storage.cache import node_cache
from penstock.storage.cache.node_cache import CacheTally, NodeCache
from penstock.storage.digest import digest
from penstock.storage.errors import CorruptObjectError, ObjectNotFoundError, StoreError
from penstock.storage.refs import Ref
from penstock.storage.shards.verify import check_content
from penstock.storage.stores.open import open_store
from penstock.storage.stores.protocol import Store

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
    """Count the downloads of one object in the server's log."""
    return sum('"GET ' in line and f"/{name} " in line for line in log.read_text().splitlines())


def cached(cache: NodeCache) -> set[str]:
    return {file.name for file in cache.folder.iterdir() if file.is_file()}


def test_readers_of_a_node_share_one_download(s3_server, s3_url: str, store: Store, tmp_path: Path):
    """24 concurrent readers of an object, 8 threads in each of 3 processes, cause one request."""
    content = os.urandom(2_000_000)
    ref = put(store, "shared-by-many", content)
    program = f"""
import json, sys, threading
from pathlib import Path
from penstock.storage.cache.node_cache import CacheTally, NodeCache
from penstock.storage.digest import digest
from penstock.storage.refs import Ref
from penstock.storage.stores.open import open_store
ref = Ref({ref.name!r}, {ref.digest!r}, {ref.nbytes})
store, cache = open_store({s3_url!r}), NodeCache(Path({str(tmp_path / "cache")!r}), 10_000_000)
store.exists("warm")
tally, right, start = CacheTally(), [], threading.Barrier(8)
def read():
    start.wait()
    right.append(digest(cache.get_buffer(store, ref, tally)) == ref.digest)
threads = [threading.Thread(target=read) for _ in range(8)]
print("ready", flush=True)
sys.stdin.readline()
for thread in threads: thread.start()
for thread in threads: thread.join()
assert right == [True] * 8
assert digest(cache.get(store, ref).read_bytes()) == ref.digest
print(json.dumps(tally.to_json()))
"""
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    tallies = []
    for process in processes:
        output, errors = process.communicate(timeout=150)
        assert process.returncode == 0, errors
        tallies.append(json.loads(output))
    assert downloads(s3_server.log, "shared-by-many") == 1
    total = {name: sum(tally[name] for tally in tallies) for name in tallies[0]}
    assert total["hits"] + total["misses"] == 24
    assert total["downloads"] == 1
    assert total["waits"] == total["misses"] - 1
    assert total["origin_bytes"] == len(content)


def test_who_waits_for_a_download_does_not_verify_it_again(
    store: Store, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
):
    """A second cache of the folder, as of another process, waits for the first one's lock; a third comes later."""
    ref = put(store, "waited-for", os.urandom(100_000))
    waiting, downloading = threading.Event(), threading.Event()
    checked: list[str] = []

    def check(content: memoryview, ref: Ref, place: str) -> None:
        check_content(content, ref, place)
        checked.append(place)

    class SlowStore:
        url = store.url

        def path(self, name: str) -> None:
            return store.path(name)

        def view(self, name: str) -> memoryview:
            downloading.set()
            assert waiting.wait(150)
            return store.view(name)

    def exists(file: Path) -> bool:
        found = os.path.exists(file)  # noqa: PTH110  (this replaces the Path's own)
        if file.name == ref.digest:
            waiting.set()
        return found

    monkeypatch.setattr(node_cache, "check_content", check)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.get_buffer, SlowStore(), ref)
        assert downloading.wait(150)
        monkeypatch.setattr(Path, "exists", exists)
        second = threads.submit(pickle.loads(pickle.dumps(cache)).get_buffer, store, ref)
        assert digest(first.result(150)) == digest(second.result(150)) == ref.digest
    assert checked == [store.url]
    assert digest(pickle.loads(pickle.dumps(cache)).get_buffer(store, ref)) == ref.digest
    assert checked == [store.url, str(cache.folder / ref.digest)]


def test_reads_are_counted(store: Store, cache: NodeCache):
    """A first read is a miss and a download of all bytes, a later one a hit; nothing is counted without counters."""
    ref = put(store, "object", b"content")
    cache.get(store, put(store, "other", b"other"))
    tally = CacheTally()
    cache.get_buffer(store, ref, tally)
    cache.get_buffer(store, ref, tally)
    cache.get(store, ref, tally)
    assert tally.to_json() == {"hits": 2, "misses": 1, "downloads": 1, "waits": 0, "origin_bytes": 7}


def test_an_object_made_on_the_node_is_not_downloaded(s3_server, store: Store, cache: NodeCache):
    """An object put into the cache serves all readers of this node, including new ones."""
    ref = put(store, "made-here", b"content")
    cache.put(store, ref, [b"con", memoryview(b"tent")])
    cache.put(store, ref, [b"content"])
    assert bytes(cache.get_buffer(store, ref)) == b"content"
    assert NodeCache(cache.folder, LIMIT_BYTES).get(store, ref).read_bytes() == b"content"
    assert downloads(s3_server.log, "made-here") == 0


def test_what_a_node_can_make_is_not_downloaded(s3_server, store: Store, cache: NodeCache):
    """One of eight concurrent readers makes the content, and all have it: nothing is requested."""
    content = os.urandom(100_000)
    ref = put(store, "made-from-another", content)
    made, tally, start = [], CacheTally(), threading.Barrier(8)

    def make() -> memoryview:
        made.append(1)
        return memoryview(content)

    def read() -> bytes:
        start.wait()
        return bytes(cache.get_buffer(store, ref, tally, make))

    with ThreadPoolExecutor(8) as threads:
        assert {waiting.result() for waiting in [threads.submit(read) for _ in range(8)]} == {content}
    assert len(made) == 1
    assert (tally.hits + tally.misses, tally.downloads, tally.origin_bytes) == (8, 0, 0)
    assert downloads(s3_server.log, "made-from-another") == 0


@pytest.mark.parametrize(
    "made", [None, b"contenT", b"", CorruptObjectError("damaged")], ids=["none", "other", "", "error"]
)
def test_what_is_made_wrongly_is_downloaded(store: Store, cache: NodeCache, made: bytes | Exception | None):
    """Only content with the reference's digest is kept."""
    ref, tally = put(store, "object", b"content"), CacheTally()

    def make() -> memoryview | None:
        if isinstance(made, Exception):
            raise made
        return None if made is None else memoryview(made)

    assert cache.get(store, ref, tally, make).read_bytes() == b"content"
    assert (tally.downloads, tally.origin_bytes) == (1, 7)


def test_a_failed_download_is_tried_again(store: Store, cache: NodeCache):
    """Threads that wait for one download all get its error; a later read tries the store again."""
    content = b"content"
    ref = Ref("late", digest(content), len(content))
    start = threading.Barrier(4)

    def read() -> str:
        start.wait()
        with pytest.raises(ObjectNotFoundError) as raised:
            cache.get_buffer(store, ref)
        return str(raised.value)

    with ThreadPoolExecutor(4) as threads:
        said = [waiting.result() for waiting in [threads.submit(read) for _ in range(4)]]
    assert all("'late'" in text for text in said)
    put(store, "late", content)
    assert bytes(cache.get_buffer(store, ref)) == content


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


def test_local_objects_are_used_in_place(tmp_path: Path, cache: NodeCache):
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
    """The error names the object."""
    for get in (cache.get, cache.get_buffer):
        with pytest.raises(ObjectNotFoundError, match="'object'"):
            get(store, Ref("object", digest(b""), 0))


def test_damaged_cache_files_are_replaced(store: Store, cache: NodeCache):
    """A process verifies a file at its first use, since a power cut may have damaged it."""
    ref = put(store, "object", b"content")
    for damaged in (b"\0" * 7, b"cont", b""):
        cache.folder.mkdir(exist_ok=True)
        (cache.folder / ref.digest).write_bytes(damaged)
        fresh = NodeCache(cache.folder, LIMIT_BYTES)
        assert bytes(fresh.get_buffer(store, ref)) == b"content"
        assert fresh.get(store, ref).read_bytes() == b"content"


def test_least_recently_used_files_are_evicted(store: Store, cache: NodeCache):
    """Beyond the limit the least recently used files are removed; an object above the limit stays alone."""
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


def test_leftovers_of_killed_downloads_are_removed(store: Store, cache: NodeCache):
    """A part file is removed when its writer is dead, as its lock shows; a very young one stays as well."""
    program = f"""
import os, signal
from pathlib import Path
from penstock.storage.cache.disk_quota import DiskQuota
Path({str(cache.folder)!r}).mkdir()
DiskQuota(Path({str(cache.folder)!r}), 1_000_000)._begin("killed", 900_000)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    (killed,) = cached(cache)
    written, young = "written.1-0.part", "young.2-0.part"
    for name in (written, young):
        (cache.folder / name).write_bytes(b"half")
    for name in (killed, written):
        os.utime(cache.folder / name, (0, 0))
    later = time.time() + 3600.0
    os.utime(cache.folder / young, (later, later))  # young for as long as this test takes
    with (cache.folder / written).open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        ref = put(store, "object", b"c" * 500_000)
        cache.get(store, ref)
        assert cached(cache) == {ref.digest, written, young}
    NodeCache(cache.folder, LIMIT_BYTES).get(store, put(store, "other", b"o"))
    assert cached(cache) == {ref.digest, digest(b"o"), young}


def test_the_limit_holds_for_all_processes_together(store: Store, cache: NodeCache):
    """Processes that fill the cache concurrently never exceed its limit, and the files that stay are whole."""
    program = f"""
import os, sys
from penstock.storage.cache.node_cache import NodeCache
from penstock.storage.digest import digest
from penstock.storage.refs import Ref
from penstock.storage.stores.open import open_store
store, cache = open_store({store.url!r}), NodeCache({str(cache.folder)!r}, {LIMIT_BYTES})
sys.stdin.readline()
for _ in range(40):
    content = os.urandom(90_000)
    cache.put(store, Ref("object", digest(content), len(content)), [content])
"""
    processes = [subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        process.stdin.write(b"go\n")
        process.stdin.close()
    for process in processes:
        assert process.wait(150) == 0
    files = [file for file in cache.folder.iterdir() if file.is_file()]
    assert LIMIT_BYTES // 2 < sum(file.stat().st_size for file in files) <= LIMIT_BYTES
    assert all(digest(file.read_bytes()) == file.name for file in files)


def test_small_files_are_added_from_a_reservation(store: Store, cache: NodeCache):
    """A process reserves a little ahead and again when that is used up; the reservation is never too small."""
    account = cache.folder / "locks" / "used"
    seen, used_bytes = set[int](), 0
    for number in range(100):
        content = number.to_bytes(100, "little")
        cache.put(store, Ref("object", digest(content), len(content)), [content])
        used_bytes += len(content)
        seen.add(int(account.read_bytes()))
        assert used_bytes <= max(seen) <= used_bytes + LIMIT_BYTES // 1024
    assert len(seen) < 15, "of a thousandth of the limit each, and a file's"


@pytest.mark.parametrize("text", [b"", b"nonsense", b"-5", b"999999999"])
def test_a_wrong_count_of_the_cache_is_corrected(store: Store, cache: NodeCache, text: bytes):
    """The file with the bytes in use may be lost or wrong: a process that starts scans the folder."""
    refs = [put(store, f"object-{index}", bytes([index]) * 400_000) for index in range(3)]
    cache.get(store, refs[0])
    (cache.folder / "locks" / "used").write_bytes(text)
    fresh = NodeCache(cache.folder, LIMIT_BYTES)
    fresh.get(store, refs[1])
    assert cached(cache) == {refs[0].digest, refs[1].digest}
    fresh.get(store, refs[2])
    assert len(cached(cache)) == 2


def test_a_full_disk_costs_speed_only(store: Store, cache: NodeCache, caplog: pytest.LogCaptureFixture):
    """If the cache can't write (a file size limit stands for a full disk), buffers come from the store: one warning."""
    contents = [bytes([index]) * 200_000 for index in range(3)]
    refs = [put(store, f"object-{index}", content) for index, content in enumerate(contents)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with caplog.at_level(logging.WARNING, logger="penstock.storage.cache.node_cache"):
            tally = CacheTally()
            found = [bytes(cache.get_buffer(store, ref, tally)) for ref in refs]
            assert tally.downloads == len(refs)
            cache.put(store, refs[1], [contents[1]])
        with pytest.raises(StoreError, match=str(cache.folder)):
            cache.get(store, refs[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found == contents
    assert [str(cache.folder) in record.message for record in caplog.records] == [True]
    assert cached(cache) == set()
    assert cache.get(store, refs[0]).read_bytes() == contents[0]


def test_a_cache_below_a_file_costs_speed_only(store: Store, tmp_path: Path):
    """A cache whose folder can't be made still returns right content."""
    (tmp_path / "file").write_bytes(b"")
    ref = put(store, "object", b"content")
    assert bytes(NodeCache(tmp_path / "file" / "cache", LIMIT_BYTES).get_buffer(store, ref)) == b"content"


@pytest.mark.parametrize("where", ["absolute", "upwards"])
def test_a_digest_that_is_a_path_touches_no_file(store: Store, cache: NodeCache, tmp_path: Path, where: str):
    """A reference from a hostile store names a file of the reader: it is refused, and the file is as it was."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    put(store, "object", b"content")
    ref = Ref("object", str(victim) if where == "absolute" else "../victim", 7)
    reads = (
        lambda: cache.get(store, ref),
        lambda: cache.get_buffer(store, ref),
        lambda: cache.find(ref),
        lambda: cache.put(store, ref, [b"evil"]),
    )
    for read in reads:
        with pytest.raises(CorruptObjectError, match="32 hexadecimal digits"):
            read()
    assert victim.read_bytes() == b"precious"


def test_the_folder_is_private(store: Store, cache: NodeCache):
    """Other users can't read it, let alone write to it, whatever the process's umask says."""
    cache.get(store, put(store, "object", b"content"))
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def test_a_readable_folder_becomes_private(store: Store, cache: NodeCache):
    """A cache of an earlier version had mode 0755."""
    cache.folder.mkdir(mode=0o755)
    cache.get(store, put(store, "object", b"content"))
    assert cache.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["link", "open"])
def test_a_folder_that_others_could_have_made_is_not_used(
    store: Store, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
):
    """Objects are read from the store instead, each time; what lies in that folder is neither read nor written."""
    content = os.urandom(1000)
    ref = put(store, "object", content)
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / ref.digest).write_bytes(content)  # even the right content: its owner could change it later
    folder = tmp_path / "cache"
    if kind == "link":
        folder.symlink_to(other)
    else:
        folder.mkdir()
        folder.chmod(0o777)
        (folder / ref.digest).write_bytes(content)
    before = sorted(folder.iterdir())
    tally = CacheTally()
    found = NodeCache(folder, LIMIT_BYTES)
    for reads in (1, 2):
        assert found.get_buffer(store, ref, tally) == content
        assert (tally.hits, tally.downloads) == (0, reads)
    assert found.find(ref) is None
    assert sorted(folder.iterdir()) == before
    assert "expected a folder of this user alone" in caplog.text
    with pytest.raises(StoreError, match="expected a folder of this user alone"):
        found.get(store, ref)
