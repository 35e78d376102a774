"""Serves environments to Penstock over a socket. Needs Python and NumPy; Gymnasium only to make an id.

Beside an environment that can't have Penstock (another Python, a container, a robot's computer), copy this file,
`batch.py`, `rows.py`, `tls.py` and `wire.py`, and call `EnvironmentServer`, or run `python server.py CartPole-v1
--port 7000`. A connection owns its environments, which end with it; each has a thread.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import json
import logging
import os
import socket
import stat
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

try:
    from penstock.native.sockets import wire
    from penstock.native.sockets.batch import Batch, RefusedError
    from penstock.native.sockets.tls import Certificate, PlainClientError
except ImportError:  # copied without Penstock
    import wire  # type: ignore[import-not-found, no-redef]
    from batch import Batch, RefusedError  # type: ignore[import-not-found, no-redef]
    from tls import Certificate, PlainClientError  # type: ignore[import-not-found, no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_VARIABLE = "PENSTOCK_ENVIRONMENT_TOKEN"  # noqa: S105  (the name of a variable)
"""Environment variable with the text that clients must send; without it, a server listens on loopback alone."""

_HELLO_SECONDS = 10.0
_SENDING_SECONDS = 60.0
_PAUSE_SECONDS = 0.1
_CONNECTIONS = 256
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hello:
    """A client's first frame."""

    version: int
    num_envs: int
    limit: int
    """Steps of an episode; 0 for the environment's own limit, -1 for none."""
    token: bytes
    name: str
    settings: Any
    masks: bool


class EnvironmentServer:
    """Listens on an address from its making on, and serves environments while `serve` runs.

    `address` is the one that clients are given, `host:port` or `unix:/path`.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        name: str,
        address: str = "127.0.0.1:7000",
        *,
        takes_limit: bool = False,
        seed_bits: int = 64,
        token: str | None = None,
        tls: tuple[str, str] | None = None,
    ) -> None:
        """Listen.

        Args:
            make: Makes one environment with Gymnasium's `reset(seed=)`, `step`, `observation_space` and `action_space`.
                Its keyword arguments are a client's settings, which a run has as `environment.settings`.
            name: Clients ask for it, as `socket/<name>`.
            address: `host:port` (port 0 takes a free one) or `unix:/path`.
            takes_limit: Whether `make` takes `max_episode_steps` too; otherwise the steps are counted here.
            seed_bits: Seeds have up to 64 bits; larger ones are folded into so many, for generators that take less.
            token: Text that clients must send; None takes `PENSTOCK_ENVIRONMENT_TOKEN`.
            tls: Paths of PEM files of a certificate and its key: connections are then encrypted, and only those.

        Raises:
            ValueError: The address is none, or not of this machine's loopback while there is no token; or the
                certificate or its key is none.
            OSError: It can't be listened on.
        """
        if not 1 <= seed_bits <= 64:
            raise ValueError(f"seed_bits is {seed_bits}, expected 1 to 64")
        family, where = wire.address_parts(address)
        self._token = (os.environ.get(TOKEN_VARIABLE, "") if token is None else token).encode()
        is_unix = family == socket.AF_UNIX
        if not is_unix and where[0] not in _LOOPBACK and not self._token:
            raise ValueError(
                f"address {address!r} can be reached by other machines, whose users could make environments here: "
                f"expected 127.0.0.1, or a secret in the variable {TOKEN_VARIABLE} here and where the run acts"
            )
        if is_unix and tls is not None:
            raise ValueError(f"address {address!r} never leaves this machine: leave the certificate and its key out")
        self._certificate = None if tls is None else Certificate(*tls)
        self._make, self.name, self._takes_limit, self._seed_bits = make, name, takes_limit, seed_bits
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            if is_unix:
                _remove_stale(where)
            else:
                self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listening.bind(where)
            self._listening.listen(128)
        except OSError:
            self._listening.close()
            raise
        bound = self._listening.getsockname()
        self.address = f"unix:{bound}" if is_unix else written(bound[0], bound[1])
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def serve(self) -> None:
        """Serve clients until `close` is called by another thread or a signal's handler."""
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if self._closed.wait(_PAUSE_SECONDS):
                    return
                logger.warning("a connection is not accepted: %s", error)  # such as too many open files
                continue
            with self._lock:
                is_full = len(self._open) >= _CONNECTIONS
                if not is_full:
                    self._open.add(connection)
            if is_full:
                connection.close()
            else:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # which wakes `accept`
        self._listening.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    # Not SSLSocket's, after which its thread could still send, unencrypted.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
        if self.address.startswith("unix:"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.removeprefix("unix:"))  # noqa: PTH108  (one import less where this is copied)

    def _serve(self, connection: socket.socket) -> None:
        batch = None
        try:
            _prepare(connection)
            connection = self._encrypted(connection)
            batch = self._welcome(connection)
            connection.settimeout(None)
            while _answer(connection, batch):
                pass
        except wire.WireError as error:
            logger.info("a client is gone: %s", error)
        except Exception as error:  # noqa: BLE001  (an environment may raise anything, and the client is told)
            plain = isinstance(error, (PlainClientError, RefusedError))
            said = str(error) if plain else f"{type(error).__name__}: {error}"
            logger.info("a client is refused: %s", said)
            with contextlib.suppress(OSError):
                connection.settimeout(_SENDING_SECONDS)
                wire.send_frame(connection, wire.FAILED, said.encode()[: wire.MAX_TEXT_BYTES])
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
            if batch is not None:
                batch.close()

    def _encrypted(self, connection: socket.socket) -> socket.socket:
        """Return the connection, after a handshake where the server has a certificate."""
        if self._certificate is None:
            return connection
        connection.settimeout(_HELLO_SECONDS)
        wrapped = self._certificate.wrapped(connection)
        with self._lock:
            self._open.discard(connection)
            self._open.add(wrapped)
        try:
            if self._closed.is_set():  # `close` may have found neither
                raise wire.WireError("the server is closed")
            wrapped.do_handshake()
        except OSError as error:
            with self._lock:
                self._open.discard(wrapped)
            wrapped.close()
            raise wire.WireError(f"no TLS handshake ({error})") from error
        return wrapped

    def _welcome(self, connection: socket.socket) -> Batch:
        kind, body = wire.receive_frame(connection, wire.MAX_TEXT_BYTES, _HELLO_SECONDS)
        if kind != wire.HELLO:
            raise wire.WireError("the first frame is no HELLO")
        hello = read_hello(body, self._token)
        if hello.name not in {"", self.name}:
            raise RefusedError(f"the server has {self.name!r}, expected {hello.name!r}; ask for socket/{self.name}")
        batch = Batch(
            self._make,
            hello.settings,
            hello.num_envs,
            hello.limit,
            takes_limit=self._takes_limit,
            seed_bits=self._seed_bits,
            version=hello.version,
            masks=hello.masks,
        )
        try:
            sizes = wire.WELCOME_HEAD.pack(hello.version, hello.num_envs, batch.observations.bytes, batch.actions.bytes)
            described = json.dumps({"name": self.name, **batch.description}, allow_nan=False).encode()
            if len(sizes) + len(described) > wire.MAX_TEXT_BYTES:
                raise RefusedError(  # noqa: TRY301  (sent to the client below)
                    f"the spaces take {len(described)} bytes to describe, expected at most {wire.MAX_TEXT_BYTES}; give "
                    f"the numbers of a large Box the same bounds"
                )
            connection.settimeout(_SENDING_SECONDS)
            wire.send_frame(connection, wire.WELCOME, sizes, described)
        except BaseException:
            batch.close()
            raise
        return batch


def read_hello(body: memoryview, token: bytes = b"") -> Hello:
    """Return what a HELLO says, which has this token.

    Raises:
        WireError: It is none of this protocol.
        RefusedError: It has another version or token, or a part that is none.
    """
    head = wire.HELLO_HEAD
    if len(body) < head.size or bytes(body[:8]) != wire.MAGIC:
        raise wire.WireError("the first frame is no HELLO of this protocol")
    _, version, wishes, num_envs, limit, *sizes = head.unpack(body[: head.size])
    if version not in (wire.PLAIN_VERSION, wire.VERSION):
        raise RefusedError(
            f"the client speaks version {version} of the protocol, the server {wire.PLAIN_VERSION} and {wire.VERSION}: "
            f"update the older side"
        )
    if len(body) != head.size + sum(sizes):
        raise wire.WireError("the first frame is no HELLO of this protocol")
    texts, token_bytes, name_bytes = bytes(body[head.size :]), sizes[0], sizes[1]
    if not hmac.compare_digest(texts[:token_bytes], token):
        raise RefusedError(f"the token is wrong: expected the text of {TOKEN_VARIABLE} that the server has")
    try:
        name = texts[token_bytes : token_bytes + name_bytes].decode()
    except UnicodeDecodeError as error:
        raise RefusedError(f"the name of the environment is no UTF-8: {error}") from error
    if wishes not in ((0, wire.MASKS) if version == wire.VERSION else (0,)):
        raise RefusedError(f"the client has the wishes {wishes}, the server knows {wire.MASKS}: update the server")
    if not 1 <= num_envs <= wire.MAX_ENVS or limit < -1:
        raise RefusedError(f"num_envs {num_envs} with max_episode_steps {limit} is out of range")
    try:
        settings = json.loads(texts[token_bytes + name_bytes :] or b"{}")
    except (RecursionError, ValueError) as error:
        raise RefusedError(f"the settings are no JSON: {error}") from error
    if not isinstance(settings, dict):
        raise RefusedError(f"the settings are {settings!r}, expected an object")
    return Hello(version, num_envs, limit, texts[:token_bytes], name, settings, wishes == wire.MASKS)


def serve_id(
    env_id: str,
    address: str,
    seed_bits: int = 64,
    tls: tuple[str, str] | None = None,
    announce: Callable[[], object] = lambda: None,
) -> EnvironmentServer:
    """Return a server of an environment in Gymnasium's registry, which is made once to see that it can be.

    Args:
        env_id: The id.
        address: As `EnvironmentServer`.
        seed_bits: Likewise.
        tls: Likewise.
        announce: Called before the environment is made, which may take a while.

    Raises:
        ValueError: Gymnasium has no such id, can't make it, or it does not fit the protocol; or as `EnvironmentServer`.
        OSError: The address can't be listened on.
    """
    import gymnasium  # noqa: PLC0415  (a server of one's own environment needs none)

    def make(**settings: Any) -> Any:
        return gymnasium.make(env_id, disable_env_checker=True, **settings)

    name = env_id.rpartition(":")[2]
    server = EnvironmentServer(make, name, address, takes_limit=True, seed_bits=seed_bits, tls=tls)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        announce()
        try:
            Batch(make, {}, 1, 0, takes_limit=True, seed_bits=seed_bits).close()
        except RefusedError as error:
            raise ValueError(f"{env_id} can't be served: {error}") from error
        stack.pop_all()
    return server


def _answer(connection: socket.socket, batch: Batch) -> bool:
    """Answer one frame; returns whether the connection goes on."""
    most = (9 + batch.actions.bytes) * batch.num_envs
    kind, body = wire.receive_frame(connection, most, None)
    if kind == wire.CLOSE:
        return False
    expected = {wire.RESET: 9 * batch.num_envs, wire.STEP: most}.get(kind)
    if len(body) != expected:
        raise RefusedError(f"received kind {kind} with {len(body)} bytes, expected RESET or STEP of the agreed sizes")
    answer = (wire.OBSERVED, [batch.reset(body)]) if kind == wire.RESET else (wire.STEPPED, batch.step(body))
    wire.send_frame(connection, answer[0], *answer[1])
    return True


def _remove_stale(path: str) -> None:
    """Remove the socket that a killed server has left, and nothing else."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:  # a socket that nobody listens on; a file is refused alike, and kept
            if stat.S_ISSOCK(os.stat(path).st_mode):  # noqa: PTH116  (one import less where this is copied)
                os.unlink(path)  # noqa: PTH108  (the same)
        except OSError:
            return


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def written(host: str, port: int) -> str:
    """Return an address as one text, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main() -> None:
    """Serve an id of Gymnasium's registry until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Serve a Gymnasium environment to Penstock.")
    parser.add_argument("id", help="id in Gymnasium's registry, or module:id")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7000)
    parser.add_argument("--seed-bits", type=int, default=64)
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"), help="PEM files of a certificate and its key")
    given = parser.parse_args()
    tls = None if given.tls is None else (given.tls[0], given.tls[1])
    server = serve_id(given.id, written(given.host, given.port), given.seed_bits, tls)
    print(f"socket/{server.name} at {server.address}; Ctrl-C ends it", flush=True)  # noqa: T201
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()


if __name__ == "__main__":
    main()
