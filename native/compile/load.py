"""Compiles custom environments: a header becomes a library that is cached and loaded into this process.

A library is kept in `$PENSTOCK_CACHE_DIR` (or `penstock` in the user's cache folder) under the digest of all that made
it: the source and what it includes, Penstock's headers among that, flags and compiler. Loading a cached one takes
milliseconds. Nothing is removed from that folder automatically; it may be deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import gymnasium
from filelock import FileLock

from penstock.native import _core
from penstock.native.compile.compiler import CompileError, Compiler, find_compiler, include_dir
from penstock.native.pool import task_libraries
from penstock.native.registry.gymnasium_ids import register
from penstock.native.registry.registry import make_native

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.native.pool.pool import Pool

_EXPORT = re.compile(r"(?:^|[;}])\s*PENSTOCK_LIBRARY\s*\(", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# They change which files a compiler finds, and are not on its command line.
_SEARCH_PATHS = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
_Item = TypeVar("_Item")
# Compilations of a source that changes meanwhile, before that is an error.
_ATTEMPTS = 3

_loaded: dict[str, str] = {}
"""Path of every library that this process has loaded, with the digest that its file had."""
_builds: dict[str, Build | None] = {}
"""The build of every environment that this process has loaded; None if it came as a library."""
_files: dict[str, Path] = {}
"""The library's file of every environment that this process has loaded: the newest one of that id."""


class BuildOptions(TypedDict):
    """Options of a build other than its flags, as `load` takes them."""

    environments: Sequence[str]
    include_dirs: Sequence[str | os.PathLike[str]]
    libraries: Sequence[str]


@dataclass(frozen=True, slots=True)
class Library:
    """A library whose environments `native.make` now knows."""

    path: Path
    environment_ids: tuple[str, ...]
    compiled: bool = False
    """False if it was found in the cache, or was a library already."""
    seconds: float = 0.0
    """Time to find, compile and load it."""
    file: Path | None = None
    """The file that was loaded, if ids of its environments may become another library's: `path`, or a copy of it."""

    def make(self, num_envs: int, *, id: str | None = None, **options: Any) -> Pool:  # noqa: A002
        """Make a pool: `native.make` with this library's environment.

        Args:
            num_envs: How many.
            id: Which environment, where the library has several.
            options: As `native.make` takes them: num_threads, max_episode_steps, configuration, ...

        Raises:
            ValueError: The library has several environments and `id` names none of them.
            RuntimeError: Another library has been loaded since that has an environment of this id.
        """
        if id is None and len(self.environment_ids) == 1:
            id = self.environment_ids[0]  # noqa: A001
        if id not in self.environment_ids:
            raise ValueError(f"id is {id!r}; this library's environments: {', '.join(self.environment_ids)}")
        if self.file is not None and _files.get(id, self.file) != self.file:
            raise RuntimeError(
                f"{id} is now that of {_files[id]}, which was loaded after {self.path}: load this library again, or "
                "give one of the two another id"
            )
        return make_native(id, num_envs, **options)


def load(
    source: str | os.PathLike[str],
    *,
    environments: Sequence[str] = (),
    flags: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    libraries: Sequence[str] = (),
    resources: str | os.PathLike[str] = "",
) -> Library:
    """Compile environments, unless that was done before, and load them: for `make`, and for Gymnasium as `penstock/ID`.

    An id that an earlier library brought is replaced: the newest library wins, and earlier pools remain valid.

    Args:
        source: Path of a header, or its text (anything with a line break in it).
        environments: C++ names of the environments in it, where it has no `PENSTOCK_LIBRARY(...)` line of its own.
        flags: For the compiler, after Penstock's own: `["-O2", "-DNDEBUG"]`. Not -ffast-math: results would differ.
        include_dirs: Folders of other headers.
        libraries: What to link: a name as for `-l`, or a path. Name a static library (.a) by its path: of a name, no
            change of the file is noticed.
        resources: Folder that an environment with something shared is made from.

    Raises:
        FileNotFoundError: There is no such file.
        CompilerNotFoundError: There is no compiler.
        CompileError: It does not compile; the message names the place and the expectation.
        RuntimeError: The cache cannot be written to; or the library cannot be loaded.
        ValueError: It exports no environment, or one whose id is a built-in's or nothing that Gymnasium accepts.
    """
    started = time.perf_counter()
    build = build_of(source, environments, ["-O3", *as_list(flags, "flags")], include_dirs, libraries)
    built, compiled = build.result()
    ids = _load(built, resources, build)
    return Library(built, ids, compiled, time.perf_counter() - started, built)


def load_library(path: str | os.PathLike[str], resources: str | os.PathLike[str] = "") -> Library:
    """Load a shared library of environments: one that CMake built (`native.cmake_dir`), say.

    Raises:
        FileNotFoundError: There is no such file.
        RuntimeError: It is not a library of environments, or was compiled for another Penstock.
        ValueError: The id of an environment in it is a built-in's, or nothing that Gymnasium accepts.
    """
    started = time.perf_counter()
    file = Path(path).resolve()
    if not file.is_file():
        raise FileNotFoundError(f"there is no library {str(file)!r}")
    digest = _digest([file.read_bytes()])
    if _loaded.setdefault(str(file), digest) != digest:
        # The dynamic loader knows a library by its path, and would give back the one it has.
        copy = cache_dir() / "copies" / f"{digest}-{file.name}"
        with _written(copy.parent):
            copy.parent.mkdir(parents=True, exist_ok=True)
            _replace(copy, file)
        file = copy
    ids = _load(file, resources, None)
    return Library(Path(path).resolve(), ids, seconds=time.perf_counter() - started, file=file)


def build_of(
    source: str | os.PathLike[str],
    environments: Sequence[str],
    flags: Sequence[str],
    include_dirs: Sequence[str | os.PathLike[str]],
    libraries: Sequence[str],
    program: str = "",
) -> Build:
    """Return the build that `load` would run, with these flags added to those of every environment."""
    include_dirs = as_list(include_dirs, "include_dirs")
    folders = [part for folder in include_dirs for part in ("-I", str(Path(folder).resolve()))]
    environments, libraries = as_list(environments, "environments"), as_list(libraries, "libraries")
    path = _source_file(source)
    return Build(path, tuple(environments), (*flags, *folders), tuple(libraries), find_compiler(), program)


def build_behind(environment_id: str) -> tuple[bool, Build | None]:
    """Return whether `load` or `load_library` brought this environment, and the build that `load` ran for it."""
    return environment_id in _builds, _builds.get(environment_id)


def cache_dir() -> Path:
    """Return the folder of compiled libraries, logs and manifests; it is created if missing.

    Raises:
        RuntimeError: It cannot be created.
    """
    given = os.environ.get("PENSTOCK_CACHE_DIR")
    if given:
        folder = Path(given)
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "libraries"
    # Its files are executed: no other user may write to it.
    with _written(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.resolve()


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    """Say of which folder it is that something could not be written, and how to choose another.

    Raises:
        RuntimeError: In place of an OSError that is about that folder or names no file, as a full disk's.
    """
    try:
        yield
    except OSError as error:
        about = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else folder
        if not (about.is_relative_to(folder) or folder.is_relative_to(about)):
            raise
        raise RuntimeError(
            f"compiled environments can't be kept in {folder} ({error.strerror or error}); PENSTOCK_CACHE_DIR names "
            "another folder"
        ) from error


@dataclass(frozen=True, slots=True)
class Build:
    """One source with everything that determines its binary. The same build gives the same file."""

    source: Path
    environments: tuple[str, ...]
    arguments: tuple[str, ...]
    link: tuple[str, ...]
    compiler: Compiler
    program: str = ""
    """Text of a main(): then a program is built, not a library."""

    def result(self) -> tuple[Path, bool]:
        """Path of what was built; and whether it had to be compiled.

        Raises:
            CompileError: It does not compile.
            RuntimeError: The cache cannot be written to.
            ValueError: It exports no environment.
        """
        folder = cache_dir()
        request = _digest(
            [
                self.source.read_bytes(),
                repr((str(self.source), self.environments, self.arguments, self.link, self.program)).encode(),
                str(include_dir().resolve()).encode(),  # another Penstock of this user has headers of its own
                repr((self.compiler, [os.environ.get(name) for name in _SEARCH_PATHS], platform.machine())).encode(),
                # `native` means another instruction set on another machine.
                platform.node().encode() if any("native" in flag for flag in self.arguments) else b"",
            ]
        )
        # Has the binary's size, and names which files a request read when it was last built; if none has changed, it
        # would read the same ones.
        manifest = folder / f"{request}.json"
        if (known := self._known(folder, manifest)) is not None:
            return known, False
        with _written(folder), FileLock(folder / f"{request}.lock"):
            if (known := self._known(folder, manifest)) is not None:
                return known, False
            for _ in range(_ATTEMPTS):
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    files, built = self._compile(Path(scratch), folder / "logs" / f"{request}.log")
                    target = self._target(folder, request, files)
                    if target != built:  # a file was saved meanwhile: what was compiled is neither state
                        continue
                    made, listed = Path(scratch) / "built", Path(scratch) / "manifest"
                    listed.write_text(json.dumps([made.stat().st_size, *map(str, files)]), encoding="utf-8")
                    for written in (made, listed):
                        _keep(written)
                    made.replace(target)
                    listed.replace(manifest)
                    return target, True
        raise RuntimeError(f"{self.source} changed while it was compiled, {_ATTEMPTS} times; save it and try again")

    def _known(self, folder: Path, manifest: Path) -> Path | None:
        try:
            size, *files = json.loads(manifest.read_text(encoding="utf-8"))
            target = self._target(folder, manifest.stem, map(Path, files))
            return target if target.stat().st_size == size else None
        except (OSError, ValueError):
            return None

    def _target(self, folder: Path, request: str, files: Iterable[Path]) -> Path:
        contents = (part for file in files for part in (str(file).encode(), file.read_bytes()))
        return folder / (_digest([request.encode(), *contents]) + (".out" if self.program else ".so"))

    def _compile(self, scratch: Path, log: Path) -> tuple[list[Path], Path]:
        """Compile into `scratch`; the files that were read, and the target as they were before."""
        unit = scratch / "unit.cpp"
        export = f"PENSTOCK_LIBRARY({', '.join(self.environments)})\n" if self.environments else ""
        unit.write_text(
            f'#include <penstock/library.hpp>\n#include "{self.source}"\n{export}{self.program}', encoding="utf-8"
        )
        listing = self.compiler.run([*self.arguments, "-MM", str(unit)], [self.source], log, scratch)
        files = sorted({file for file in _listed(listing) if file != unit})
        files += [Path(name).resolve() for name in self.link if os.sep in name]
        target = self._target(log.parent.parent, log.stem, files)
        sources = [self.source, *(file for file in files if file != self.source and not _is_ours(file))]
        self._check_export(sources)
        linked = [part for name in self.link for part in _link_arguments(name)]
        kind = [] if self.program else ["-shared"]
        out = ["-o", str(scratch / "built")]
        self.compiler.run([*self.arguments, *kind, str(unit), *out, *linked], sources, log, scratch)
        return files, target

    def _check_export(self, sources: Iterable[Path]) -> None:
        texts = [_COMMENT.sub("", file.read_text(encoding="utf-8", errors="replace")) for file in sources]
        exports = any(map(_EXPORT.search, texts))
        if exports and self.environments:
            raise ValueError(
                f"{self.source.name} has a PENSTOCK_LIBRARY line of its own, which lists its exports: leave out "
                f"environments={list(self.environments)}"
            )
        if not exports and not self.environments:
            raise ValueError(
                f"{self.source.name} exports no environment: write PENSTOCK_LIBRARY(YourEnvironment) at its end, or "
                "pass environments=['YourEnvironment']"
            )


def _load(file: Path, resources: str | os.PathLike[str], build: Build | None) -> tuple[str, ...]:
    # MuJoCo's tasks are built in, too, though their libraries are loaded when the first is made.
    ids = tuple(_core.load_library(str(file), str(resources), reserved=task_libraries.IDS))
    _builds.update(dict.fromkeys(ids, build))
    _files.update(dict.fromkeys(ids, file))
    for environment_id in ids:
        try:
            register(environment_id)
        except gymnasium.error.Error as error:
            raise ValueError(f"Gymnasium does not accept the id {environment_id!r}: {error}") from error
    return ids


def _source_file(source: str | os.PathLike[str]) -> Path:
    if isinstance(source, str) and "\n" in source:
        return _kept_source(source.encode())
    file = Path(source).resolve()
    if not os.fspath(source):
        raise ValueError("source is empty, expected the path or the text of a header")
    if file.is_dir():
        headers = ", ".join(sorted(path.name for path in file.glob("*.hpp"))) or "none"
        raise IsADirectoryError(f"{str(file)!r} is a folder, expected a header; its headers: {headers}")
    if not file.is_file():
        raise FileNotFoundError(f"there is no header {str(file)!r}; load() takes a path, or the text of a header")
    if unfit := sorted(set(str(file)) & set('"\\\n')):
        raise ValueError(f"the path of {str(file)!r} has {unfit[0]!r} in it, which no #include can name: rename it")
    return file


def _kept_source(text: bytes) -> Path:
    """Return the file in the cache that has this text; a power cut may have left another one."""
    file = cache_dir() / "sources" / f"{_digest([text])}.hpp"
    with _written(file.parent):
        if file.exists() and file.read_bytes() == text:
            return file
        file.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            (written := Path(scratch) / "text").write_bytes(text)
            _keep(written)
            written.replace(file)
    return file


def as_list(given: Sequence[_Item], name: str) -> Sequence[_Item]:
    """Return what is given as a list; a text, which is a sequence of letters, is refused by ValueError."""
    if isinstance(given, str):
        raise ValueError(f"{name} is {given!r}, expected a list: {name}=[{given!r}]")  # noqa: TRY004 as load() says
    return given


def _listed(rule: str) -> list[Path]:
    """Return the files of a make rule, where a backslash hides a line break or a blank."""
    names = re.findall(r"(?:\\.|[^\s\\])+", rule.split(": ", 1)[1].replace("\\\n", " "))
    return [Path(re.sub(r"\\(.)", r"\1", name).replace("$$", "$")).resolve() for name in names]


def _link_arguments(name: str) -> list[str]:
    if os.sep not in name:
        return [f"-l{name}"]
    file = Path(name).resolve()
    return [str(file), f"-Wl,-rpath,{file.parent}"]


def _is_ours(file: Path) -> bool:
    return file.is_relative_to(include_dir().resolve())


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _keep(file: Path) -> None:
    """Make a file's bytes durable, so that a power cut after its renaming leaves no empty one."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _replace(target: Path, file: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        shutil.copy2(file, Path(scratch) / "copy")
        (Path(scratch) / "copy").replace(target)


__all__ = ["Build", "CompileError", "Library", "build_behind", "build_of", "cache_dir", "load", "load_library"]
