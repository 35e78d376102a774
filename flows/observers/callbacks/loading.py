"""Loads callbacks that are named as `module:Name`.

Such a name is never stored with a run: only who starts or resumes a run names what is imported, so it needs no consent.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from penstock.flows.observers.callbacks.callback import METHODS, Callback
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.local_modules import search_working_directory

if TYPE_CHECKING:
    from collections.abc import Iterable


def load_callbacks(names: Iterable[str]) -> list[Callback]:
    """Import callbacks by name; a class is called without arguments.

    Raises:
        ConfigError: one can't be imported or made, or follows nothing.
    """
    return [_made(f"callback {name}", found_callback(name)) for name in names]


def found_callback(name: str) -> Any:
    """Import the object that a name means: a callback, or its class, not made yet. Raises as `load_callbacks`."""
    module_name, _, attribute = name.partition(":")
    folder = search_working_directory()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"callback {name}: importing {module_name} failed: {in_one_line(error)}; it is searched on Python's path "
            f"and in {folder}"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(
            f"callback {name}: module {module_name} has no '{attribute}'; expected a callback or its class"
        )
    _check_methods(f"callback {name}: it", found)
    _check_arguments(f"callback {name}", found)
    return found


def made_callbacks(callbacks: object) -> list[Callback]:
    """Return callbacks that were given as objects; a class is called without arguments.

    Raises:
        ConfigError: they are no list, or one follows nothing or can't be made.
    """
    if not isinstance(callbacks, list | tuple):
        raise ConfigError(f"callbacks = {callbacks!r}: expected a list of callbacks, such as [MyCallback()]")
    for one in callbacks:
        _check_methods(f"callbacks: {one!r}", one)
    return [_made("callbacks", one) for one in callbacks]


def _check_methods(what: str, found: Any) -> None:
    """Raise ConfigError if a callback, or its class, has no method of its own that is called, or an `async` one."""
    own = [method for method in METHODS if _own(found, method) is not None]
    if not own:
        raise ConfigError(
            f"{what} has none of {', '.join(METHODS)}; expected a subclass of penstock.Callback that has one at least"
        )
    if waiting := [method for method in own if inspect.iscoroutinefunction(_own(found, method))]:
        raise ConfigError(f"{what} has an `async` {', '.join(waiting)}, which nothing awaits; expected plain methods")


def _check_arguments(what: str, found: Any) -> None:
    """Raise ConfigError if a class can't be called without arguments, as far as its signature says."""
    if not isinstance(found, type):
        return
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # of a class in C there may be none: making it will say
        return
    try:
        signature.bind()
    except TypeError as error:
        raise ConfigError(
            f"{what}: {found.__name__}{signature} can't be made without arguments: {error}; give a callback that is "
            f"made, such as `made = {found.__name__}(...)` in its module"
        ) from error


def _own(found: Any, method: str) -> Any:
    """Return a method that a callback, or its class, has in place of `Callback`'s, which do nothing; None without."""
    given = getattr(found, method, None)
    return given if callable(given) and getattr(given, "__func__", given) is not getattr(Callback, method) else None


def in_one_line(error: BaseException) -> str:
    """Format an error's kind and message, and the last place in its traceback, on one line."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    try:
        said = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  (a user's exception may fail to say what it is)
        said = ""
    text = f"{type(error).__name__}: {said}".rstrip(": ")
    if where is None or where.tb_frame.f_code.co_filename.startswith("<"):  # of Python itself
        return text
    return f"{text} ({Path(where.tb_frame.f_code.co_filename).name}, line {where.tb_lineno})"


def _made(what: str, found: Any) -> Callback:
    if not isinstance(found, type):
        return cast("Callback", found)
    try:
        return cast("Callback", found())
    except Exception as error:
        raise ConfigError(f"{what}: {found.__name__} can't be made without arguments: {in_one_line(error)}") from error
