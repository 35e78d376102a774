"""What the flow has to know of an algorithm from outside the repository, asked of a process of its own.

The flow's process imports no torch, and such a module does; besides, whatever importing it does ends with the process.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage.digest import digest
from storage.errors import ConfigError
from storage.specs import Spec
from tasks.algorithm_settings.own import OwnSettings
from tasks.own_source import digest_of, relative_to

if TYPE_CHECKING:
    from tasks.config import ConfigT, RunConfig

_PROBE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class OwnAlgorithm:
    """What was found."""

    settings: dict[str, Any]
    """All settings, those that were left out with their defaults."""
    rows: dict[str, Spec]
    """Columns that it adds to a shard."""
    files: dict[str, str]
    """Source files and a digest of each."""
    root: str
    """The folder in which Python found its module, or its package."""
    learns_from_window: bool
    """Whether it learns from rows of many rounds."""

    @property
    def source(self) -> str:
        """One digest of all source files, wherever they lie."""
        return digest("".join(self.files.values()).encode())

    @property
    def unchanged(self) -> bool:
        """Whether the files are still what was looked at."""
        try:
            return all(digest_of(file) == found for file, found in self.files.items())
        except OSError:
            return False


_asked: dict[str, OwnAlgorithm] = {}


def ask(config: RunConfig) -> OwnAlgorithm:
    """Import the configured algorithm, check its settings and make it, in another process. Takes seconds, once.

    Raises:
        ConfigError: one line a mistake: a missing module or class, a setting that is wrong, or what went wrong in it.
    """
    question = _question(config)
    if question not in _asked or not _asked[question].unchanged:
        _asked[question] = _ask(question, config.algorithm.name)
    return _asked[question]


def _question(config: RunConfig) -> str:
    settings = {"algorithm": config.algorithm.model_dump(mode="json"), "environment": config.environment.model_dump()}
    return json.dumps({**settings, "path": sys.path}, sort_keys=True)


def _ask(question: str, name: str) -> OwnAlgorithm:
    try:
        # -P: the working directory comes last (`load_class`), so that nothing in it can stand for one of our packages.
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tasks.own_probe"],
            input=question,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"algorithm.name = '{name}': importing and making it took more than {_PROBE_SECONDS:g} s; do no work there"
        ) from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(f"algorithm.name = '{name}': its process ended with {done.returncode}: {last}")
    answer = json.loads(lines[-1])
    if "error" in answer:
        raise ConfigError(answer["error"])
    rows = {column: Spec.from_json(spec) for column, spec in answer["rows"].items()}
    return OwnAlgorithm(answer["settings"], rows, answer["files"], answer["root"], answer["learns_from_window"])


def completed(config: ConfigT) -> ConfigT:
    """The settings with those of one's own algorithm complete, so that a run keeps the defaults that it began with.

    Raises:
        ConfigError: as `ask`.
    """
    if not isinstance(config.algorithm, OwnSettings):
        return config
    found = ask(config)
    whole = config.model_copy(update={"algorithm": OwnSettings(name=config.algorithm.name, **found.settings)})
    _asked[_question(whole)] = found
    return whole


def own_files(config: RunConfig) -> dict[str, str]:
    """Digests of an own algorithm's files, for workers to compare; of those that ship, nothing."""
    if not isinstance(config.algorithm, OwnSettings):
        return {}
    found = ask(config)
    return relative_to(found.root, found.files)


def source_of(config: RunConfig) -> dict[str, str]:
    """The digest of an own algorithm's source, for a run's fingerprint; of those that ship, nothing."""
    if not isinstance(config.algorithm, OwnSettings):
        return {}
    return {config.algorithm.name: ask(config).source}


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    own, specs = importlib.import_module("tasks.own_algorithm"), importlib.import_module("tasks.specs")
    source = importlib.import_module("tasks.own_source")
    make_pool = importlib.import_module("tasks.environments").make_pool
    build_config = importlib.import_module("tasks.config").build_config
    config = build_config({"environment": question["environment"], "algorithm": question["algorithm"]})
    pool = make_pool(config, 1)
    environment = specs.EnvironmentSpec.from_pool(config.environment.id, dict(pool.environment))
    pool.close()
    try:
        algorithm = own.make_own(config.algorithm, environment)
        return {
            "settings": own.typed_settings(type(algorithm), config.algorithm),
            "rows": {name: spec.to_json() for name, spec in algorithm.rows.items()},
            "files": source.source_digests(config.algorithm.name),
            "root": source.source_root(config.algorithm.name),
            "learns_from_window": importlib.import_module("tasks.algorithm").window_spec(algorithm) is not None,
        }
    except ConfigError as error:
        return {"error": str(error)}


def main() -> None:
    """Answer the question on standard input; what the module prints goes to standard error."""
    question = json.load(sys.stdin)
    sys.path += [entry for entry in question.pop("path") if entry not in sys.path]
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        print(json.dumps(_answer(question)), file=out)


if __name__ == "__main__":
    main()
