"""Compiles and loads the C++ header that settings name: an environment without a package. Imports no torch.

A new run stores the header's text with its settings, and every process compiles that text: other hosts need a compiler
and no file, and the file may change meanwhile.
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock import native
from penstock.native.compile.compiler import OF_STORED_HEADERS, find_compiler
from penstock.native.compile.load import build_behind
from penstock.native.registry.entry_points import load_installed_again
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.tasks.setup.config.environment import EnvironmentSettings
    from penstock.tasks.setup.config.run import RunConfig

    ConfigT = TypeVar("ConfigT", bound=RunConfig)

_LIMIT_BYTES = 1 << 20
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"(?!penstock/)([^"]+)"', re.MULTILINE)

_brought: dict[str, object] = {}
"""The build of each id's newest header: `native.make` finds its environment by the id as long as the process lives."""

_loading = threading.RLock()
"""A library replaces the environments of another one that have the same id; members of two runs may share a process."""


def with_header(config: ConfigT) -> ConfigT:
    """Return the configuration with its header's text and the id in it; one without a header, unchanged.

    Raises:
        ConfigError: as `loaded_header`; or the header has several environments and `environment.id` chooses none.
    """
    settings = _with_text(config.environment)
    if settings.header_text is None or settings is config.environment:
        return config
    with loaded_header(settings, is_new=True) as environment_id:
        settings = settings.model_copy(update={"id": environment_id})
    return config.model_copy(update={"environment": settings})


@contextmanager
def loaded_header(settings: EnvironmentSettings, *, is_new: bool = False) -> Iterator[str]:
    """Load the environments of the configured header, if there is one, and yield the id of the configured environment.

    Until the context ends, no other header replaces them. The first time a machine compiles it, which takes seconds.

    Args:
        settings: of the environment.
        is_new: whether no run has stored this text yet; one that did compiles whatever has been refused since.

    Raises:
        ConfigError: the header can't be read, includes files of its own, does not compile, or does not have the id; or
            this machine has no compiler; or without a header, only that of another run has the id.
    """
    is_new = is_new or settings.header_text is None
    settings = _with_text(settings)
    if settings.header_text is None:
        if settings.id not in _brought:
            yield settings.id
            return
        with _loading:
            _restore(settings.id)
            yield settings.id
        return
    with _loading:
        ids = _load(settings.header_text, _name(settings), is_new=is_new)
        _brought.update({name: build_behind(name)[1] for name in ids})
        yield _chosen(settings, ids)


def _restore(environment_id: str) -> None:
    """Have an id stand for an installed package's environment again, if a header of another run has replaced it.

    Raises:
        ConfigError: no installed package has it.
    """
    if build_behind(environment_id)[1] != _brought[environment_id]:
        return
    load_installed_again()
    if build_behind(environment_id)[1] == _brought[environment_id]:
        raise ConfigError(
            f"environment.id = '{environment_id}': only a header has it, which another run of this process names, and "
            f"no installed package; name the header as environment.header"
        )


def header_compiler(config: RunConfig) -> dict[str, str]:
    """Return the compiler of this machine for a run's fingerprint; nothing for a run without a header."""
    if not config.environment.header_text:
        return {}
    lines = find_compiler().version.splitlines()
    return {"compiler": lines[0] if lines else "unknown"}


def _name(settings: EnvironmentSettings) -> str:
    return Path(settings.header or "header").name


def _with_text(settings: EnvironmentSettings) -> EnvironmentSettings:
    if settings.header is None or settings.header_text is not None:
        return settings
    file = Path(settings.header)
    try:
        data = file.read_bytes()
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"environment.header = '{file}': cannot be read ({why}), expected a C++ header") from error
    if len(data) > _LIMIT_BYTES:
        raise ConfigError(f"environment.header = '{file}': found {len(data)} bytes, expected at most {_LIMIT_BYTES}")
    return settings.model_copy(update={"header_text": text})


def _load(text: str, name: str, *, is_new: bool) -> tuple[str, ...]:
    included = _INCLUDE.findall(text)
    if included:
        raise ConfigError(
            f"environment.header: {name} includes '{included[0]}', and a run stores one header; put its text into "
            f"{name}, or make a package of them (docs/environments.md, Ship it) and name the environment by its id"
        )
    try:
        try:
            return native.load(f"{text}\n").environment_ids
        except native.CompileError:
            if is_new:
                raise
            return native.load(f"{text}\n", flags=OF_STORED_HEADERS).environment_ids
    except (native.CompileError, native.CompilerNotFoundError, ValueError, RuntimeError) as error:
        said = re.sub(r"'?/\S*/[0-9a-f]{32}\.so'?|\b[0-9a-f]{32}\.hpp", name, str(error))  # names in the cache: digests
        said = said.replace(", or pass environments=['YourEnvironment']", "")
        raise ConfigError(f"environment.header: {said}") from error


def _chosen(settings: EnvironmentSettings, ids: tuple[str, ...]) -> str:
    if settings.id in ids:
        return settings.id
    if "id" not in settings.model_fields_set and len(ids) == 1:
        return ids[0]
    found = "several environments" if "id" not in settings.model_fields_set else f"no environment '{settings.id}'"
    raise ConfigError(f"environment.header: {_name(settings)} has {found}; choose environment.id from {', '.join(ids)}")
