"""Keeps a run to the MuJoCo model that it began with, by the digest of its files. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.native.pool.mujoco_library import IDS, model_path
from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from penstock.tasks.setup.config.environment import EnvironmentSettings
    from penstock.tasks.setup.config.run import RunConfig

    ConfigT = TypeVar("ConfigT", bound=RunConfig)

SETTING = "xml_file"
_FILE = re.compile(r"""\bfile\w*\s*=\s*["']([^"']+)["']""")
_FOLDER = re.compile(r"""\b(?:mesh|texture|asset)dir\s*=\s*["']([^"']+)["']""")


def with_model_digest(config: ConfigT) -> ConfigT:
    """Return the configuration with the absolute path and the digest of its model; one without a model, unchanged.

    Raises:
        ConfigError: as `check_model`.
    """
    settings = config.environment
    if not _names_a_model(settings):
        return config
    check_model(settings)
    given = str(settings.settings[SETTING])
    path = str(model_path(given)) if given.startswith((".", "~")) else given
    update = {"settings": {**settings.settings, SETTING: path}, "model_digest": _digest(settings)}
    return config.model_copy(update={"environment": settings.model_copy(update=update)})


def check_model(settings: EnvironmentSettings) -> None:
    """Check that the model is the one that the run was created with, if it was created with one.

    Raises:
        ConfigError: there is no such file, or it or a file that it includes has other bytes.
    """
    if not _names_a_model(settings):
        return
    found = _digest(settings)
    if settings.model_digest not in (None, found, _digest(settings, in_order=True)):
        raise ConfigError(
            f"environment.settings.{SETTING} = '{settings.settings[SETTING]}': found files with the digest {found}, "
            f"expected {settings.model_digest}, with which the run was created; restore those files, or start another "
            f"run"
        )


def _names_a_model(settings: EnvironmentSettings) -> bool:
    return settings.id in IDS and isinstance(settings.settings.get(SETTING), str)


def _digest(settings: EnvironmentSettings, *, in_order: bool = False) -> str:
    try:
        files = model_files(model_path(str(settings.settings[SETTING])), in_order=in_order)
        contents = [(file.name.encode(), file.read_bytes()) for file in files]
    except (ValueError, OSError, ImportError) as error:
        raise ConfigError(f"environment.settings.{SETTING}: {error}") from error
    return digest(*(part for content in contents for one in content for part in (len(one).to_bytes(8, "little"), one)))


def model_files(path: Path, *, in_order: bool = False) -> list[Path]:
    """Return a model's file, and those that it names and that exist: included models, meshes, textures, fields.

    Args:
        path: of the model.
        in_order: look for a file in the folders that are named before it alone, and by its whole name, as runs of
            Penstock 0.2 and earlier did.
    """
    files, folders = _files(path, [path.parent], by_last_part=False)
    if in_order:
        return files
    # A folder may be named behind a file, in another one, and the folders of names be left out (`strippath`).
    every, _ = _files(path, folders, by_last_part=True)
    return [*files, *(file for file in every if file not in files)]


def _files(path: Path, folders: list[Path], *, by_last_part: bool) -> tuple[list[Path], list[Path]]:
    """Return the files that are found, and the folders that they are searched in."""
    files, waiting, folders = list[Path](), [path], list(folders)
    while waiting:
        file = waiting.pop(0)
        if file in files:
            continue
        files.append(file)
        if file.suffix != ".xml":
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        folders += [path.parent / name for name in _FOLDER.findall(text)]
        names = _FILE.findall(text)
        names += [Path(name).name for name in names] if by_last_part else []
        named = [folder / name for name in names for folder in [*folders, file.parent]]
        waiting += [candidate.resolve() for candidate in named if candidate.is_file()]
    return files, folders
