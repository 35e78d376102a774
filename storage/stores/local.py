"""Implements a store in a folder of a disk: atomic replacement by rename, exclusive creation by hard link."""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import random
import secrets
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from penstock.storage.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from penstock.storage.stores.protocol import TEMPORARY_PREFIX, check_name, check_range

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Buffer

LEFTOVER_SECONDS = 86_400
"""A half-written file this old belongs to a killed writer; the listing that finds it removes it."""

MAPPED_RANGE_BYTES = 4 << 20
"""Ranges of this size or more are mapped; smaller ones are copied faster than one page fault for every 4 KiB."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
"""Answers to `link` of file systems that have no hard links."""
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Flags with which objects are opened: a pipe by the name of one would be waited for."""
_IO_VECTOR_PARTS = 1024  # IOV_MAX of Linux
_PLAIN_AT_MOST = 1024  # folders that are remembered: a stage has some of its own
_FOLDER_SECONDS = 5.0  # a folder may vanish between its creation and its use, again and again, while others delete
_PROCESS_TOKEN = secrets.token_hex(4)  # distinguishes hosts that share a disk; the process id distinguishes forks
_COUNTER = itertools.count()


class LocalStore:
    """Stores objects as plain files below `root`; a folder is created with its first object.

    A write goes to a temporary file next to its target and is renamed, so that readers, mappings and crashes never see
    half of it. Empty folders are removed with their last object.

    `root` may be a symbolic link. Links below it are not listed, and nothing is written or removed behind one: whoever
    can write to a shared folder would choose what else is.
    """

    __slots__ = ("_plain", "_root", "_rooted", "url")

    def __init__(self, root: Path | str) -> None:
        self.url = os.fspath(root)
        self._root = self.url.rstrip("/") + "/"
        self._plain: set[str] = set()
        """Folders below the root that were no links, with their parents, when something was written into them."""
        self._rooted = False  # whether the root's own entry, up to the top, was made durable by this instance

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str]]:
        return LocalStore, (self.url,)

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    def read(self, name: str) -> bytes:
        """Read a whole object."""
        check_name(name)
        try:
            descriptor = os.open(self._root + name, _READ)
            try:
                _require_file(descriptor)
                with open(descriptor, "rb", buffering=0, closefd=False) as file:
                    return file.readall()
            finally:
                os.close(descriptor)
        except OSError as error:
            self._fail_reading(name, error)

    def view(self, name: str) -> memoryview:
        """Map a whole object copy on write: pages are shared with all readers until they are written to."""
        check_name(name)
        try:
            descriptor = os.open(self._root + name, _READ)
            try:
                size = _require_file(descriptor).st_size
                # The mapping keeps a descriptor of its own open for as long as it lives.
                return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) if size else bytearray())
            finally:
                os.close(descriptor)
        except OSError as error:
            self._fail_reading(name, error)

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Read bytes [start, stop), as many as exist: mapped if large, copied otherwise."""
        check_range(name, start, stop)
        try:
            descriptor = os.open(self._root + name, _READ)
            try:
                stop = min(stop, _require_file(descriptor).st_size)
                if stop - start >= MAPPED_RANGE_BYTES:
                    page = start - start % mmap.ALLOCATIONGRANULARITY
                    mapped = mmap.mmap(descriptor, stop - page, access=mmap.ACCESS_COPY, offset=page)
                    return memoryview(mapped)[start - page :]
                return _read_at(descriptor, start, max(0, stop - start))
            finally:
                os.close(descriptor)
        except OSError as error:
            self._fail_reading(name, error)

    def write(self, name: str, parts: Sequence[Buffer], *, durable: bool = False) -> None:
        """Store the concatenated parts, which are not joined in memory."""
        check_name(name)
        target = self._root + name
        temporary = ""
        try:
            temporary = self._write_temporary(target, parts, durable=durable)
            os.replace(temporary, target)  # noqa: PTH105  (a Path costs more than the call)
            if durable:
                self._sync_folders([name])
        except OSError as error:
            _remove(temporary)
            self._fail_writing(name, error)

    def create(self, name: str, data: bytes) -> None:
        """Store `data` if there is no such object: exactly one of several writers wins, on any POSIX file system."""
        check_name(name)
        target = self._root + name
        temporary = ""
        try:
            temporary = self._write_temporary(target, [data], durable=True)
            try:
                is_new = _link(temporary, target)
            except OSError as error:
                if error.errno in _NO_LINKS:
                    advice = "its file system may lack hard links, which exclusive creation needs: use another one"
                    self._fail_writing(name, error, advice)
                raise
            if not is_new:
                raise ObjectExistsError(f"'{name}' exists already in the store '{self.url}'; read it to see its writer")
            self._sync_folders([name])
        except OSError as error:
            self._fail_writing(name, error)
        finally:
            _remove(temporary)

    def exists(self, name: str) -> bool:
        """Return whether the file exists."""
        check_name(name)
        try:
            return stat.S_ISREG(os.stat(self._root + name).st_mode)  # noqa: PTH116  (a Path costs more than the call)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._fail_reading(name, error)

    def list(self, prefix: str = "") -> builtins.list[str]:
        """List names that start with `prefix`, sorted; reads only folders that can contain such names."""
        folder, slash, start = prefix.rpartition("/")
        try:
            return sorted(_walk(self._root + folder, folder + slash, start))
        except OSError as error:
            self._fail_reading(f"{prefix}*", error)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, then the folders that are empty now."""
        folders = set()
        for name in names:
            check_name(name)
            try:
                self._refuse_links(name.rpartition("/")[0])
                os.unlink(self._root + name)  # noqa: PTH108  (a Path costs more than the call)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self._fail_writing(name, error)
            folders.add(name.rpartition("/")[0])
        for folder in folders:
            while folder:
                try:
                    Path(self._root + folder).rmdir()
                except OSError:
                    break  # has other objects, or another process was faster
                folder = folder.rpartition("/")[0]  # noqa: PLW2901  (climbs)

    def sync(self, names: Iterable[str]) -> None:
        """Flush files and their folders to the disk."""
        names = list(names)
        if not names:
            return  # the folder of a store need not exist before its first object
        name = ""
        try:
            for name in names:
                check_name(name)
                _sync_path(self._root + name)
            self._sync_folders(names)
        except OSError as error:
            self._fail_reading(name, error)

    def path(self, name: str) -> Path:
        """Return the file that contains, or would contain, an object."""
        check_name(name)
        return Path(self._root + name)

    def at(self, prefix: str) -> LocalStore:
        """Return the same store below a folder."""
        prefix = prefix.rstrip("/")
        check_name(prefix)
        return LocalStore(self._root + prefix)

    def _refuse_links(self, folder: str) -> None:
        """Raise an OSError if a folder below the root, or one above it there, is a symbolic link."""
        while folder and folder not in self._plain:
            if os.path.islink(self._root + folder):  # noqa: PTH114  (a Path costs more than the call)
                raise OSError(errno.ELOOP, f"'{folder}' is a symbolic link, behind which nothing is written or removed")
            folder = folder.rpartition("/")[0]

    def _write_temporary(self, target: str, parts: Sequence[Buffer], *, durable: bool) -> str:
        folder = target[: target.rindex("/")]
        below = folder[len(self._root) :]
        self._refuse_links(below)
        temporary = f"{folder}/{TEMPORARY_PREFIX}{_PROCESS_TOKEN}-{os.getpid()}-{next(_COUNTER)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        deadline = pause = 0.0
        while True:
            try:
                if deadline:
                    os.makedirs(folder, exist_ok=True)  # noqa: PTH103  (a Path costs more than the call)
                descriptor = os.open(temporary, flags, 0o666)
                if len(self._plain) >= _PLAIN_AT_MOST:
                    self._plain.clear()
                self._plain.add(below)
                break
            except (FileNotFoundError, FileExistsError):  # the latter where a folder vanishes during the call
                now = time.monotonic()
                deadline = deadline or now + _FOLDER_SECONDS
                if now > deadline:
                    raise
                # Exponential back-off with random jitter, or writers and deleters could keep colliding.
                time.sleep(random.uniform(0, pause))  # noqa: S311  (no secret)
                pause = min(0.1, 2 * pause + 1e-4)
        try:
            _write_parts(descriptor, parts)
            if durable:
                os.fsync(descriptor)
        except BaseException:
            _remove(temporary)
            raise
        finally:
            os.close(descriptor)
        return temporary

    def _sync_folders(self, names: Iterable[str]) -> None:
        folders = {""}
        for name in names:
            folder = name.rpartition("/")[0]
            while folder:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        for folder in sorted(folders, reverse=True):  # inner ones first
            _sync_path(self._root + folder)
        if not self._rooted:
            for folder_above in Path(self._root).parents:
                try:
                    _sync_path(str(folder_above))
                except PermissionError:
                    break  # not readable, so this process created nothing in it
            self._rooted = True

    def _fail_reading(self, name: str, error: OSError) -> NoReturn:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}:
            raise ObjectNotFoundError(
                f"there is no object '{name}' in the store '{self.url}'; check the name and the store's url"
            ) from error
        raise StoreError(
            f"cannot read '{name}' in the store '{self.url}': {error.strerror}; check that the disk is mounted and its "
            "files are readable"
        ) from error

    def _fail_writing(
        self, name: str, error: OSError, advice: str = "check that it is a folder and is writable"
    ) -> NoReturn:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            advice = "the disk or the user's quota is full: free space, then resume what stopped"
        raise StoreError(f"cannot write '{name}' in the store '{self.url}': {error.strerror}; {advice}") from error


def _require_file(descriptor: int) -> os.stat_result:
    """Return the status of what was opened; an OSError if that is no plain file."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return status


def _link(temporary: str, target: str) -> bool:
    """Give a file its name; False if the name is taken."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        # On NFS the response to a successful link can be lost, and the client's retry then finds its own file.
        return os.stat(temporary).st_nlink == 2  # noqa: PTH116  (a Path costs more than the call)
    return True


def _read_at(descriptor: int, start: int, nbytes: int) -> memoryview:
    """Read as many bytes as exist; one call may return fewer (2 GiB limit, signals)."""
    view = memoryview(bytearray(nbytes))
    done = 0
    while done < nbytes and (read := os.preadv(descriptor, [view[done:]], start + done)):
        done += read
    return view[:done]


def _write_parts(descriptor: int, parts: Sequence[Buffer]) -> None:
    """Write all parts in few system calls. A call may write less than it was given (2 GiB, signals, full disk)."""
    views = [view for part in parts if (view := memoryview(part)).nbytes]
    if sum(view.nbytes for view in views) == 0:
        return
    written = os.writev(descriptor, views[:_IO_VECTOR_PARTS])
    if written == sum(view.nbytes for view in views):
        return
    pending = [view.cast("B") for view in views]
    while True:
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if not pending:
            return
        pending[0] = pending[0][written:]
        written = os.writev(descriptor, pending[:_IO_VECTOR_PARTS])


def _walk(folder: str, above: str, start: str) -> Iterator[str]:
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            name = entry.name
            if not name.startswith(start):
                continue
            if entry.is_symlink():
                continue
            if name.startswith(TEMPORARY_PREFIX):
                with contextlib.suppress(OSError):
                    if entry.stat().st_mtime < time.time() - LEFTOVER_SECONDS:
                        _remove(entry.path)
            elif entry.is_dir():
                yield from _walk(entry.path, f"{above}{name}/", "")
            else:
                yield above + name


def _sync_path(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems can't flush folders; nothing more can be done there
            raise
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    if path:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108  (a Path costs more than the call)
