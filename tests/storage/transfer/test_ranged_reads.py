"""Large objects are read in concurrent parts with the same bytes, and never in half."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from penstock.storage.digest import digest
from penstock.storage.errors import CorruptObjectError, StoreError
from penstock.storage.refs import Ref
from penstock.storage.stores.open import open_store
from penstock.storage.transfer.ranged_reads import RangeReader

from ...support.stored.faulty import Fault, FaultyStore

CONTENT = bytes(range(256)) * 40 + b"end"


@pytest.fixture
def store(tmp_path):
    inner = open_store(str(tmp_path))
    inner.write("object", [CONTENT])
    return FaultyStore(inner)


REF = Ref("object", digest(CONTENT), len(CONTENT))


@pytest.mark.parametrize("part_bytes", [1000, 1024, 4096, len(CONTENT) - 1, len(CONTENT), 1 << 20])
def test_parts_make_the_whole(store, part_bytes):
    """This holds for any size of a part, with one request per part."""
    buffer = bytearray(len(CONTENT))
    with RangeReader(store, part_bytes=part_bytes, in_flight=3) as reader:
        reader.read_into(REF, memoryview(buffer))
    assert buffer == CONTENT
    assert len(store.calls) == -(-len(CONTENT) // part_bytes)


def test_small_local_and_unsized_objects_are_not_read_in_parts(store, tmp_path):
    """One read is enough, or the only way."""
    with (
        RangeReader(store, part_bytes=1000) as reader,
        RangeReader(open_store(str(tmp_path)), part_bytes=1000) as local,
    ):
        assert reader.in_parts(REF)
        assert not reader.in_parts(Ref("object", REF.digest, 2000))
        assert not reader.in_parts(Ref("object", REF.digest, 0))
        assert not local.in_parts(REF)


def test_requests_are_concurrent(tmp_path):
    """Three parts wait for each other here: one after another, they would deadlock."""
    together = threading.Barrier(3)

    class Meeting(FaultyStore):
        def read_range(self, name, start, stop):
            together.wait(150)
            return super().read_range(name, start, stop)

    inner = open_store(str(tmp_path))
    inner.write("object", [CONTENT])
    buffer = bytearray(len(CONTENT))
    with RangeReader(Meeting(inner), part_bytes=-(-len(CONTENT) // 3), in_flight=3) as reader:
        reader.read_into(REF, memoryview(buffer))
    assert buffer == CONTENT


def test_an_object_that_ends_early_is_named(store):
    """Its reference has its size."""
    longer = Ref("object", REF.digest, len(CONTENT) + 1)
    with RangeReader(store, part_bytes=1000) as reader, pytest.raises(CorruptObjectError, match="object"):
        reader.read_into(longer, memoryview(bytearray(longer.nbytes)))


def test_a_part_that_fails_fails_the_object(store):
    """Nothing writes to the buffer afterwards."""
    store.add(Fault("drop", ("read_range",), first=3))
    buffer = bytearray(len(CONTENT))
    with RangeReader(store, part_bytes=1000, in_flight=2) as reader:
        with pytest.raises(StoreError):
            reader.read_into(REF, memoryview(buffer))
        left = bytes(buffer)
        reader.read_into(REF, memoryview(bytearray(len(CONTENT))))
    assert bytes(buffer) == left


def test_closing_a_reader_ends_reads_that_wait(tmp_path):
    """They end as soon as the parts under way are answered; other parts are never requested."""
    begun, answer, ended = threading.Event(), threading.Event(), []

    class Slow(FaultyStore):
        def read_range(self, name, start, stop):
            begun.set()
            assert answer.wait(150)
            return super().read_range(name, start, stop)

    inner = open_store(str(tmp_path))
    inner.write("object", [CONTENT])
    store = Slow(inner)
    reader, unused = RangeReader(store, part_bytes=1000, in_flight=2), RangeReader(store, part_bytes=1000)

    def read():
        try:
            reader.read_into(REF, memoryview(bytearray(len(CONTENT))))
        except RuntimeError as error:
            ended.append(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    assert begun.wait(150)
    for one in (reader, unused):
        one.close()
    answer.set()
    reading.join(150)
    assert len(ended) == 1
    assert len(store.calls) <= 2
    for one in (reader, unused):
        with pytest.raises(RuntimeError, match="closed"):
            one.read_into(REF, memoryview(bytearray(len(CONTENT))))


HANGING = """
import sys, threading
from penstock.storage.digest import digest
from penstock.storage.stores.local import LocalStore
from penstock.storage.transfer.ranged_reads import RangeReader
from penstock.storage.refs import Ref

asked = threading.Event()

class Hanging(LocalStore):
    def path(self, name):
        return None

    def read_range(self, name, start, stop):
        asked.set()
        threading.Event().wait()

reader = RangeReader(Hanging(sys.argv[1]), part_bytes=1)
ref = Ref("object", digest(b"1234"), 4)
threading.Thread(target=reader.read_into, args=(ref, memoryview(bytearray(4))), daemon=True).start()
assert asked.wait(150)
"""


def test_an_unanswered_part_keeps_no_process_from_ending(tmp_path):
    """The interpreter ends although requests are under way: a dead store would delay it otherwise."""
    ended = subprocess.run(
        [sys.executable, "-c", HANGING, str(tmp_path)], timeout=150, check=False, capture_output=True
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(("part_bytes", "in_flight"), [(0, 1), (1, 0)])
def test_invalid_settings_are_refused(store, part_bytes, in_flight):
    """They would read nothing."""
    with pytest.raises(ValueError):
        RangeReader(store, part_bytes=part_bytes, in_flight=in_flight)


def test_objects_are_read_in_the_order_of_calls(store):
    """An object's parts are requested before those of the next, few at first and one more with each answer."""
    asked: list[int] = []
    most, under_way = [0], [0]
    changed = threading.Condition()
    answers = threading.Semaphore(0)

    class Slow(FaultyStore):
        def read_range(self, name, start, stop):
            with changed:
                asked.append(stop)
                under_way[0] += 1
                most[0] = max(most[0], under_way[0])
                changed.notify_all()
            assert answers.acquire(timeout=150)
            with changed:
                under_way[0] -= 1
            return super().read_range(name, start, stop)

    first, second = Ref("object", REF.digest, 6000), Ref("object", REF.digest, len(CONTENT))
    buffers = [memoryview(bytearray(ref.nbytes)) for ref in (first, second)]
    with RangeReader(Slow(store), part_bytes=1000, in_flight=8) as reader:
        readers = []
        for ref, buffer in zip((first, second), buffers, strict=True):
            readers.append(threading.Thread(target=reader.read_into, args=(ref, buffer)))
            readers[-1].start()
            with changed:
                assert changed.wait_for(lambda: len(asked) >= 4, 150)
        assert sorted(asked) == [1000, 2000, 3000, 4000]
        answers.release()  # one answer: its place, and one more
        with changed:
            assert changed.wait_for(lambda: len(asked) >= 6, 150)
        assert sorted(asked) == [1000, 2000, 3000, 4000, 5000, 6000]
        for _ in range(100):
            answers.release()
        for thread in readers:
            thread.join(150)
    assert [bytes(buffer) for buffer in buffers] == [CONTENT[:6000], CONTENT]
    assert 5 <= most[0] <= 8
