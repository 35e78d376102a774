"""Consent to the code that a stored run names: whoever can write to a store must not choose what a reader imports.

`run.json` may name an algorithm, an environment or its wrappers as `module:Name`. A module that Python finds in the
working directory is imported only if this user trains the run on this machine, or has said that the run is trusted. So
is a C++ header that `run.json` holds: it is compiled and loaded only then; an address that `run.json` names is
connected to only then; and a function that makes PettingZoo's environments is called only then, since any function of
any package could be named. Other code of installed packages, and of folders that the user named in PYTHONPATH, needs no
consent. Imports no torch, and none of the modules.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import ConsentError
from penstock.storage.user_config import config_folder, read_private, write_private
from penstock.tasks.setup.config.environment import module_of_wrapper

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.runs.run import RunFolder

_TRUSTED_RUNS = "trusted-runs"
_CALLED = "pettingzoo/"
"""The family in whose ids `module:function` is called, and not searched for a class or a registered id."""


def require_consent(run: RunFolder, *needed: str) -> dict[str, Any]:
    """Refuse a stored run whose code would be imported from the working directory, unless the user trusts the run.

    Args:
        run: to judge.
        needed: names that its description must have, besides its settings.

    Returns:
        The description that was judged. Callers use it: whoever writes to the store could replace it meanwhile.

    Raises:
        ConsentError: names the code, the file, and the command that trusts the run.
        RunNotFoundError: the run does not exist.
        CorruptObjectError: `run.json` was altered.
        ConfigError: the user's configuration folder can't be read.
    """
    description: dict[str, Any] = run.load("config", *needed)
    config = description["config"]
    if not _needs_consent(config) or _identity(description) in _trusted():
        return description
    found, header, address, function = local_code(config), _header_of(config), _address_of(config), _function_of(config)
    code = ", ".join(f"{setting} = '{name}' ({origin})" for setting, name, origin in found)
    trust = (
        f"since this user has not trained or trusted the run here. Read it, then add --trust (in Python trust=True) "
        f"once: `{run.command('evaluate', '--trust')}`"
    )
    if header is not None:
        raise ConsentError(
            f"run '{run.name}' {header}"
            f"{f', and names code in the working directory: {code}' if found else ''}. It is not compiled, {trust}"
        )
    if address is not None:
        raise ConsentError(
            f"run '{run.name}' has its environments behind a socket at {address} (environment.address in its run.json)"
            f"{f', and names code in the working directory: {code}' if found else ''}. Nothing is connected to, {trust}"
        )
    if function is not None:
        raise ConsentError(
            f"run '{run.name}' names '{function}' (environment.id in its run.json), and could name any function of any "
            f"package there{f'; and code in the working directory: {code}' if found else ''}. It is not called, {trust}"
        )
    raise ConsentError(
        f"run '{run.name}' names code that Python finds in the working directory: {code}. It is not imported, {trust}; "
        f"or start the command in another folder"
    )


def record_consent(run: RunFolder) -> bool:
    """Trust the code that a run names, from now on and for this user on this machine.

    Returns:
        False if no consent is needed, or the run was trusted before.

    Raises:
        ConfigError: the user's configuration folder can't be written.
    """
    description = run.load("config")
    identity, trusted = _identity(description), _trusted()
    if not _needs_consent(description["config"]) or identity in trusted:
        return False
    lines = "".join(f"{line}\n" for line in sorted({*trusted, identity}))
    write_private(config_folder() / _TRUSTED_RUNS, lines.encode())
    return True


def _needs_consent(config: Mapping[str, Any]) -> bool:
    named = (_header_of(config), _address_of(config), _function_of(config))
    return any(one is not None for one in named) or bool(local_code(config))


def local_code(config: Mapping[str, Any]) -> list[tuple[str, str, Path]]:
    """Return the setting, its value and the file of each module that settings name in the working directory.

    Args:
        config: settings as `run.json` has them.
    """
    found = []
    for table, key in (("algorithm", "name"), ("environment", "id")):
        values = config.get(table)
        name = str(values.get(key, "")) if isinstance(values, dict) else ""
        prefixed, separator, _ = name.partition(":")
        module = prefixed.rpartition("/")[2]  # a family may come first: gymnasium/module:Id imports the module too
        if separator and (origin := _found_here(module.partition(".")[0])):
            found.append((f"{table}.{key}", name, origin))
    named = [(name, module_of_wrapper(name).partition(".")[0]) for name in _wrappers(config.get("environment"))]
    found += [
        ("environment.wrappers", name, origin) for name, module in named if module and (origin := _found_here(module))
    ]
    return found


def _wrappers(environment: object) -> list[str]:
    """Return the names of stored wrappers; what is no wrapper is refused elsewhere, before anything is imported."""
    wrappers = environment.get("wrappers") if isinstance(environment, dict) else None
    entries = wrappers if isinstance(wrappers, (list, tuple)) else ()
    return [str(one.get("name", "")) if isinstance(one, dict) else str(one) for one in entries]


def _header_of(config: Mapping[str, Any]) -> str | None:
    """Say which header settings have, by its text or by a path alone; None if there is none."""
    environment = config.get("environment")
    if not isinstance(environment, dict):
        return None
    text, path = environment.get("header_text"), environment.get("header")
    if text is None and path is None:
        return None
    named = "a C++ header" if path is None else f"the C++ header '{path}'"
    if text is None:
        return f"names {named} (environment.header in its run.json)"
    return f"holds {named} (environment.header_text in its run.json)"


def _address_of(config: Mapping[str, Any]) -> str | None:
    """Return the address that settings have for environments behind a socket; None if there is none."""
    environment = config.get("environment")
    address = environment.get("address") if isinstance(environment, dict) else None
    return None if address is None else str(address)


def _function_of(config: Mapping[str, Any]) -> str | None:
    """Return the id that names the function to be called for environments; None if none is."""
    environment = config.get("environment")
    name = str(environment.get("id", "")) if isinstance(environment, dict) else ""
    return name if name.startswith(_CALLED) and ":" in name else None


def _found_here(package: str) -> Path | None:
    """Return the file or folder of a top-level module if Python finds it in the working directory."""
    here = Path.cwd()
    if package in sys.modules and (file := getattr(sys.modules[package], "__file__", None)):
        places = [file]
    else:
        # As an import does it: first Python's path, then the working directory, where custom algorithms are searched.
        spec = PathFinder.find_spec(package, [*sys.path, str(here)])
        # None has a place if it is such as an editable package, which has a finder of its own.
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    # Of a namespace package, which has several folders, a module may be in any.
    for origin in map(Path, filter(None, places)):
        folder = origin.parent.parent if origin.name == "__init__.py" else origin.parent
        if folder.resolve() == here.resolve():
            return origin
    return None


def _identity(description: Mapping[str, Any]) -> str:
    """Return the digest of what a run is and of the code that its settings name, which need not agree if altered."""
    config = description["config"]
    named = [[table, config.get(table, {})] for table in ("algorithm", "environment")]
    return digest(canonical_json({"identity": description.get("identity"), "named": named}))


def _trusted() -> set[str]:
    found = read_private(config_folder() / _TRUSTED_RUNS)
    return set((found or b"").decode("ascii", "replace").split())
