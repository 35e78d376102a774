"""All stores keep one contract, and each adds its own guarantees."""

import errno
import os
import pickle
import re
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.storage.errors import ConfigError, ObjectExistsError, ObjectNotFoundError, StoreError
from penstock.storage.stores.local import LEFTOVER_SECONDS, LocalStore
from penstock.storage.stores.open import open_store
from penstock.storage.stores.protocol import Store
from penstock.storage.stores.remote import RequestCounts, request_counts
from penstock.storage.testing import StoreContract

from ...support.services.s3_clients import CLIENTS, OBSTORE

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


@pytest.fixture(params=CLIENTS)
def client_url(request: pytest.FixtureRequest, s3_url: str) -> str:
    """The same bucket, through each client."""
    return s3_url.replace("s3", request.param, 1)


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, client_url: str) -> Store:
        return open_store(client_url)


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
        ("s3://AKIAEXAMPLE:secret/K7MDENG+secret@bucket/runs", r"s3://AKIAEXAMPLE:\*\*\*@bucket/runs"),
        ("s3+obstore://AKIAEXAMPLE:secret/K7@bucket/runs", r"AKIAEXAMPLE:\*\*\*@bucket"),
        ("ftp://user:sec/secret@host/runs", r"user:\*\*\*@host"),
        ("s3+nonsense://bucket/runs", "there are: s3://, s3"),
        ("simplecache::s3://bucket/runs", "chained"),
        (
            "https://me:secret@host/runs",
            r"https://me:\*\*\*@host/runs': a web server keeps no runs",
        ),
        ("s3://", "names no bucket; expected s3://bucket/folder"),
        ("s3+obstore:///runs", r"names no bucket; expected s3\+obstore://bucket/folder"),
        ("s3+obstore://buck et/runs", "names no bucket"),
        ("s3+obstore://bucket?prefix=x/runs", "names no bucket"),
        ("s3:bucket/runs", r"would be a folder of that name; expected s3://bucket/folder, or \./s3:bucket/runs for"),
        ("s3:/bucket/runs", "would be a folder of that name; expected s3://bucket/folder"),
        ("S3://bucket/runs", "expected s3:// in small letters"),
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
    """A killed writer's file is in no listing, and is removed after a day; a young one may still be written."""
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
from penstock.storage.errors import StoreError
from penstock.storage.stores.open import open_store
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
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=150)
    assert ran.returncode == 0, ran.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["object"]
    assert (tmp_path / "object").read_bytes() == b"old"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV], ids=errno.errorcode.get)
def test_a_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    """The link is what it lacks; the same answer to an ordinary write has other reasons."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    store = open_store(tmp_path)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreError, match="may lack hard links"):
        store.create("object", b"new")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StoreError, match=r"check that it is a folder and is writable$"):
        store.write("object", [b"new"])


def test_local_parts_beyond_one_system_call(tmp_path: Path):
    """More parts than one system call accepts are all written, in order."""
    store = open_store(tmp_path)
    parts = [index.to_bytes(2, "little") for index in range(3000)]
    store.write("object", parts)
    assert store.read("object") == b"".join(parts)


def test_local_folders_come_and_go(tmp_path: Path):
    """A missing folder is made again, and an empty one is removed with its last object."""
    store = open_store(tmp_path / "store")
    store.write("a/b/one", [b"1"])
    store.delete(["a/b/one"])
    assert list((tmp_path / "store").iterdir()) == []
    (tmp_path / "store").rmdir()
    store.create("a/b/two", b"2")
    assert store.list() == ["a/b/two"]


PROBE_OFTEN = """
import sys
from penstock.storage.stores.probe import probe
from penstock.storage.stores.open import open_store

store = open_store(sys.argv[1])
for number in range(400):
    store.write(f".probe/a/b/{sys.argv[2]}-{number}/written", [b""])
    store.delete([f".probe/a/b/{sys.argv[2]}-{number}/written"])
probe(store)
"""


def test_folders_that_others_remove_fail_no_write(tmp_path: Path):
    """Several processes write into folders that each other's deletions remove, as probes of one new store do."""
    command = [sys.executable, "-c", PROBE_OFTEN, str(tmp_path / "store")]
    writers = [subprocess.Popen([*command, str(number)], stderr=subprocess.PIPE, text=True) for number in range(4)]
    said = [writer.communicate(timeout=150)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0], said
    assert list((tmp_path / "store").iterdir()) == []


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
@pytest.mark.parametrize("scheme", CLIENTS)
def test_a_service_that_is_gone_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch):
    """Without a server, a call gives up after a few attempts with an error that names the store, not the key."""
    monkeypatch.setattr("penstock.storage.stores.remote.FIRST_WAIT_SECONDS", 0.01)
    url = f"{scheme}://bucket/runs"
    store = open_store(url, endpoint_url=NOBODY_LISTENS, key="my-key", secret="my-secret")
    uses: list[Callable[[], object]] = [
        lambda: store.create("object", b"content"),
        lambda: store.exists("object"),
        lambda: store.read("object"),
        lambda: store.read_range("object", 0, 10),
        lambda: store.write("object", [b"content"]),
        store.list,
        lambda: store.delete(["object"]),
    ]
    for use in uses:
        with pytest.raises(StoreError, match=rf"'{re.escape(url)}' after \d attempts") as failed:
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
    """Attempts beyond the first are counted separately, and stores below a folder count together."""
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
    """A store that was given credentials refuses to be pickled, and says where they belong, not what they are."""
    store = open_store("s3://bucket/runs", **options)
    with pytest.raises(ConfigError, match="into the environment") as refused:
        pickle.dumps(store)
    assert "my-" not in str(refused.value)


@pytest.mark.usefixtures("s3_url")
@pytest.mark.parametrize("scheme", CLIENTS)
def test_a_missing_bucket_is_named(scheme: str):
    """Writing, reading and listing say so, at once and in one line; it is no bucket without objects."""
    store = open_store(f"{scheme}://no-such-bucket/runs")
    for use in (lambda: store.write("object", [b"content"]), lambda: store.read("object"), lambda: store.list("a/")):
        with pytest.raises(StoreError, match=rf"^[^\n]*'{re.escape(store.url)}': .*bucket does not exist.*$") as failed:
            use()
        assert not isinstance(failed.value, ObjectNotFoundError)


class Page(BaseHTTPRequestHandler):
    """Answers everything with a page, as the server of a web site does, or says that it is missing."""

    status = 200

    def do_GET(self) -> None:
        answer = b"<html><body>Welcome</body></html>" if self.status == 200 else b"<!DOCTYPE HTML><html><p>Missing"
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("status", [200, 404])
def test_a_server_that_is_no_s3_is_not_taken_for_an_empty_store(status: int, monkeypatch: pytest.MonkeyPatch):
    """A listing says that the endpoint is wrong, where a command would say that there are no runs."""
    monkeypatch.setattr(Page, "status", status)
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        store = open_store("s3://bucket/runs", endpoint_url=endpoint, key="my-key", secret="my-secret")
        with pytest.raises(StoreError, match=r"speaks no S3, so check AWS_ENDPOINT_URL"):
            store.list("")
        server.shutdown()


class Refusing(BaseHTTPRequestHandler):
    """S3's answer to a wrong secret, which repeats the key's id and what was signed."""

    protocol_version = "HTTP/1.1"  # clients ask before they send a body

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = (
            b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>The request '
            b"signature we calculated does not match the signature you provided.</Message><AWSAccessKeyId>my-key"
            b"</AWSAccessKeyId><StringToSign>AWS4-HMAC-SHA256\nmy-string</StringToSign></Error>"
        )
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_PUT(self) -> None:
        self.do_GET()

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("scheme", CLIENTS)
def test_a_refused_signature_does_not_leak_the_servers_answer(scheme: str):
    """The error is one line that says that the request was refused, without the key's id or the signed string."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        store = open_store(f"{scheme}://bucket/runs", endpoint_url=endpoint, key="my-key", secret="my-secret")
        uses = (lambda: store.write("object", [b"content"]), lambda: store.read("object"), lambda: store.list("a"))
        said = rf"'{re.escape(store.url)}'( after \d attempts)?: (?i:.*(signature|access.denied))"
        for use in uses:
            with pytest.raises(StoreError, match=said) as failed:
                use()
            assert "\n" not in str(failed.value)
            assert "my-" not in str(failed.value)
        server.shutdown()


@pytest.mark.parametrize("scheme", CLIENTS)
@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:9", "http://127.0.0.1:port", "ftp://127.0.0.1", "http://127.0.0.1/a b", "u:my-pw@127.0.0.1"]
)
def test_an_endpoint_that_is_no_url_is_refused(scheme: str, endpoint: str, monkeypatch: pytest.MonkeyPatch):
    """A client would fail obscurely or abort the process on it; a password in it is not shown."""
    monkeypatch.setattr("penstock.storage.stores.remote.ATTEMPTS", 1)
    store = open_store(f"{scheme}://bucket/runs", endpoint_url=endpoint, key="my-key", secret="my-secret")
    with pytest.raises(StoreError, match=rf"^[^\n]*'{re.escape(store.url)}'.*$") as failed:
        store.read("object")
    assert "my-" not in str(failed.value)


@pytest.mark.parametrize("scheme", [OBSTORE])
def test_missing_credentials_are_an_error(scheme: str, monkeypatch: pytest.MonkeyPatch, s3_url: str):
    """Without any, a call fails with an error that names the store."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("penstock.storage.stores.remote.FIRST_WAIT_SECONDS", 0.01)
    url = s3_url.replace("s3", scheme, 1)
    with pytest.raises(StoreError, match=rf"'{re.escape(url)}'.* credentials"):
        open_store(url).read("object")


@pytest.mark.parametrize("scheme", [OBSTORE])
def test_credentials_come_from_the_usual_files(scheme: str, monkeypatch: pytest.MonkeyPatch, s3_url: str, tmp_path):
    """Keys and endpoint of a profile in ~/.aws are found as botocore finds them."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / "keys").write_text("[far]\naws_access_key_id = mine\naws_secret_access_key = my-secret\n")
    (tmp_path / "config").write_text(f"[profile far]\nregion = eu-west-1\nendpoint_url = {endpoint}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "far")
    store = open_store(s3_url.replace("s3", scheme, 1))
    store.write("object", [b"content"])
    assert store.read("object") == b"content"


@pytest.mark.parametrize("scheme", [OBSTORE])
def test_clients_see_the_same_objects(s3_url: str, scheme: str):
    """A run that was written through one client resumes through another."""
    stores = [open_store(url) for url in (s3_url, s3_url.replace("s3", scheme, 1))]
    for writer in stores:
        writer.write("folder/odd name ~#%é+&=.json", [b"content of ", writer.url.encode()])
        for reader in stores:
            assert reader.list() == ["folder/odd name ~#%é+&=.json"]
            assert reader.read("folder/odd name ~#%é+&=.json") == b"content of " + writer.url.encode()


@pytest.mark.parametrize("scheme", ["s3", OBSTORE])
def test_s3_ranges_are_one_request(s3_url: str, s3_server, scheme: str):
    """A ranged read requests those bytes once, and nothing before it."""
    store = open_store(s3_url.replace("s3", scheme, 1))
    store.write("ranged", [bytes(200_000)])
    store.read_range("ranged", 0, 10)
    store.read_range("ranged", 100_000, 200_000)
    requests = [line for line in s3_server.log.read_text().splitlines() if f"{s3_url[4:]}/ranged " in line]
    assert [re.search(r'"(\w+) ', line).group(1) for line in requests] == ["PUT", "GET", "GET"]


def test_s3_deletes_more_than_one_request_takes(client_url: str):
    """Bulk deletion continues after S3's limit of 1000 objects per request."""
    store = open_store(client_url)
    store.write("last", [b"content"])
    store.delete([*(f"nothing/{index}" for index in range(1000)), "last"])
    assert store.list() == []


@pytest.mark.parametrize(
    ("scheme", "outcome"),
    [
        ("s3", "read b'content'"),
        pytest.param("s3+obstore", "start processes by spawn", marks=OBSTORE.marks),
    ],
)
def test_s3_stores_after_a_fork(s3_url: str, scheme: str, outcome: str):
    """A child process opens new connections, or says that it can't, instead of waiting for threads it lacks."""
    program = f"""
import os, sys
from penstock.storage.errors import StoreError
from penstock.storage.stores.open import open_store
store = open_store({s3_url.replace("s3", scheme, 1)!r})
store.write("parent", [b"content"])
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    print("read", store.read("parent"), flush=True)
except StoreError as error:
    print(error, flush=True)
os._exit(0)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=150)
    assert ran.returncode == 0, ran.stderr
    assert outcome in ran.stdout


def test_a_listing_requests_only_its_prefix(s3_server, s3_url: str):
    """More than a page of a folder is listed whole; one object, or none, of a full folder takes one request."""
    names = [f"stage/{number:08d}-shard" for number in range(1_003)]
    writer = open_store(s3_url)
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda name: writer.write(name, [b""]), names))
    for scheme in ("s3", *(["s3+obstore"] if find_spec("obstore") else [])):
        store = open_store(s3_url.replace("s3", scheme, 1))
        assert store.list("stage/") == names
        before = s3_server.log.stat().st_size
        assert store.list("stage/00001001-") == [names[1_001]]
        assert store.list("stage/00009999-") == []
        assert store.list("nothing/") == []
        assert store.list(names[1_001]) == [names[1_001]]
        with s3_server.log.open() as log:
            log.seek(before)
            asked = [line for line in log if '"GET ' in line or '"HEAD ' in line]
        assert len(asked) == 4, asked
        assert all("list-type=2" in line for line in asked)
