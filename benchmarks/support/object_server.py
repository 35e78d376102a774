"""Serves the part of S3 that the benchmarks need, in memory and in its own process: fast enough to measure clients.

The server has no users and checks no signatures, so it listens on loopback only. `ObjectServer` starts and ends it, and
reports its requests: `GET /` without a bucket returns every request so far as lines of JSON.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import multiprocessing
import re
import socket
import threading
import time
import urllib.parse
import urllib.request
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Self
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from io import BufferedReader
    from multiprocessing.connection import Connection

LISTED_AT_ONCE = 1_000
# The accepting thread competes with hundreds of other threads, so connections queue up.
CONNECTIONS_WAITING = 4_096
Answer = tuple[str, dict[str, str], Any]
NOTHING: Answer = ("404 Not Found", {}, b"<Error><Code>NoSuchKey</Code><Message>nothing there</Message></Error>")
BEYOND: Answer = ("416 Range Not Satisfiable", {}, b"<Error><Code>InvalidRange</Code><Message>no</Message></Error>")
REFUSED: Answer = (
    "412 Precondition Failed",
    {},
    b"<Error><Code>PreconditionFailed</Code><Message>it exists</Message><Condition>If-None-Match</Condition></Error>",
)


class ObjectServer:
    """A context manager for the server and the environment variables of its clients.

    Args:
        request_seconds: the additional latency of every request, independent of concurrency.
    """

    def __init__(self, request_seconds: float = 0.0) -> None:
        self._request_seconds = request_seconds

    def __enter__(self) -> Self:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, self._request_seconds), daemon=True
        )
        self._process.start()
        self.endpoint = f"http://127.0.0.1:{ours.recv()}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def requests(self) -> list[tuple[float, str, str, int]]:
        """Return all requests since the last call: Unix time, kind (get, put, list, head, delete), key, bytes."""
        with urllib.request.urlopen(f"{self.endpoint}/", timeout=60) as answer:
            return [tuple(json.loads(line)) for line in answer.read().splitlines()]


def _serve(ready: Connection, request_seconds: float) -> None:
    objects = _Objects()
    with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS_WAITING) as listener:
        ready.send(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_talk, args=(connection, objects, request_seconds), daemon=True).start()


def _talk(connection: socket.socket, objects: _Objects, request_seconds: float) -> None:
    with connection, connection.makefile("rb", buffering=1 << 16) as incoming, contextlib.suppress(OSError):
        while line := incoming.readline():
            method, target, _ = line.decode().split(" ")
            headers: dict[str, str] = {}
            while (field := incoming.readline().strip()) != b"":
                name, _, value = field.decode().partition(":")
                headers[name.lower()] = value.strip()
            if headers.get("expect", "").lower() == "100-continue":
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            if headers.get("transfer-encoding") == "chunked":
                body = bytearray()
                while nbytes := int(incoming.readline().partition(b";")[0], 16):
                    body += _exactly(incoming, nbytes)
                    incoming.readline()
                incoming.readline()
            else:
                body = _exactly(incoming, int(headers.get("content-length", 0)))
            if headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
                body = _without_framing(body)
            time.sleep(request_seconds)
            status, more, content = objects.answer(method, target, headers, body)
            fields = {
                "Content-Length": str(len(content)),
                "ETag": '"0"',
                "Date": formatdate(usegmt=True),
                "Last-Modified": formatdate(0, usegmt=True),
                **more,
            }
            head = f"HTTP/1.1 {status}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
            if method == "HEAD" or not len(content):
                connection.sendall(head.encode())
            elif len(content) < 1 << 16:
                connection.sendall(head.encode() + bytes(content))
            else:
                connection.sendall(head.encode())
                connection.sendall(content)


def _exactly(incoming: BufferedReader, nbytes: int) -> bytearray:
    body = bytearray(nbytes)
    view, done = memoryview(body), 0
    while done < nbytes:
        if not (read := incoming.readinto(view[done:])):
            raise ConnectionError("the client left")
        done += read
    return body


def _without_framing(body: bytearray) -> bytearray:
    """Join a body that AWS's clients send in chunks, with checksums between the chunks."""
    content, at = bytearray(), 0
    while True:
        end = body.index(b"\r\n", at)
        nbytes = int(bytes(body[at:end]).partition(b";")[0], 16)
        if not nbytes:
            return content
        content += memoryview(body)[end + 2 : end + 2 + nbytes]
        at = end + 2 + nbytes + 2


class _Objects:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._content: dict[str, bytearray] = {}
        self._keys: list[str] = []
        """Sorted, since thousands of members list a few objects of very many."""
        self._uploads: dict[str, dict[int, bytearray]] = {}
        self._count = itertools.count()
        self._asked: list[tuple[float, str, str, int]] = []

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytearray) -> Answer:
        path, _, text = target.partition("?")
        asked = dict(urllib.parse.parse_qsl(text, keep_blank_values=True))
        key = urllib.parse.unquote(path).lstrip("/")
        if not key:
            told, self._asked = self._asked, []
            return "200 OK", {}, "\n".join(map(json.dumps, told)).encode()
        found = self._answer(method, key, asked, headers, body)
        lists = method == "GET" and "/" not in key.rstrip("/")
        kind = "list" if lists else {"POST": "delete"}.get(method, method.lower())
        moved = len(body) if method == "PUT" else len(found[2]) if method == "GET" and not lists else 0
        self._asked.append((time.time(), kind, asked.get("prefix", "") if lists else key, moved))
        return found

    def _answer(self, method: str, key: str, asked: dict[str, str], headers: dict[str, str], body: bytearray) -> Answer:
        if method in {"GET", "HEAD"}:
            if "/" not in key.rstrip("/"):
                return self._list(key.rstrip("/"), asked)
            return self._read(key, headers)
        if method == "PUT":
            if "uploadId" in asked:
                self._uploads[asked["uploadId"]][int(asked["partNumber"])] = body
                return "200 OK", {}, b""
            return self._write(key, headers, body)
        if method == "POST":
            return self._post(key, asked, body)
        with self._lock:
            self._remove(key)
        return "204 No Content", {}, b""

    def _keep(self, key: str, body: bytearray) -> None:
        if key not in self._content:
            bisect.insort(self._keys, key)
        self._content[key] = body

    def _remove(self, key: str) -> None:
        if self._content.pop(key, None) is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]

    def _read(self, key: str, headers: dict[str, str]) -> Answer:
        content = self._content.get(key)
        if content is None:
            return NOTHING
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
        if not wanted:
            return "200 OK", {"Accept-Ranges": "bytes"}, content
        if int(wanted[1]) >= len(content):
            return BEYOND
        start, stop = int(wanted[1]), min(len(content), int(wanted[2] or len(content)) + 1)
        where = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        return "206 Partial Content", where, memoryview(content)[start:stop]

    def _write(self, key: str, headers: dict[str, str], body: bytearray) -> Answer:
        with self._lock:
            if headers.get("if-none-match") == "*" and key in self._content:
                return REFUSED
            self._keep(key, body)
        return "200 OK", {}, b""

    def _post(self, key: str, asked: dict[str, str], body: bytearray) -> Answer:
        if "delete" in asked:
            bucket = key.rstrip("/")
            names = re.findall(r"<Key>(.*?)</Key>", body.decode())
            with self._lock:
                for name in names:
                    self._remove(f"{bucket}/{name}")
            gone = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            return "200 OK", {}, f"<DeleteResult>{gone}</DeleteResult>".encode()
        if "uploads" in asked:
            upload = str(next(self._count))
            self._uploads[upload] = {}
            bucket, _, name = key.partition("/")
            said = f"<Bucket>{bucket}</Bucket><Key>{escape(name)}</Key><UploadId>{upload}</UploadId>"
            return "200 OK", {}, f"<InitiateMultipartUploadResult>{said}</InitiateMultipartUploadResult>".encode()
        parts = self._uploads.pop(asked["uploadId"])
        whole = bytearray().join(parts[number] for number in sorted(parts))
        with self._lock:
            self._keep(key, whole)
        said = '<CompleteMultipartUploadResult><ETag>"0"</ETag></CompleteMultipartUploadResult>'
        return "200 OK", {}, said.encode()

    def _list(self, bucket: str, asked: dict[str, str]) -> Answer:
        base = f"{bucket}/{asked.get('prefix', '')}"
        after = asked.get("continuation-token") or asked.get("start-after", "")
        with self._lock:
            first = bisect.bisect_left(self._keys, base)
            if after:
                first = max(first, bisect.bisect_right(self._keys, f"{bucket}/{after}"))
            keys = self._keys[first : first + LISTED_AT_ONCE + 1]
        page = [key[len(bucket) + 1 :] for key in itertools.takewhile(lambda key: key.startswith(base), keys)]
        cut, page = len(page) > LISTED_AT_ONCE, page[:LISTED_AT_ONCE]
        found = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<Size>{len(self._content.get(f'{bucket}/{name}', b''))}</Size><ETag>0</ETag></Contents>"
            for name in page
        )
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if cut else ""
        name = f"<Name>{escape(bucket)}</Name>"
        told = f"{name}<IsTruncated>{str(cut).lower()}</IsTruncated><KeyCount>{len(page)}</KeyCount>{more}{found}"
        return "200 OK", {"Content-Type": "application/xml"}, f"<ListBucketResult>{told}</ListBucketResult>".encode()
