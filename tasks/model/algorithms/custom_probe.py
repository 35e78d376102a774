"""Inspects a custom algorithm in a separate process: its settings, columns and source digests.

The flow's process imports no torch, and the algorithm's module does; side effects of importing it end with the process.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError
from penstock.storage.shards.specs import Spec
from penstock.tasks.model.algorithms.source_digest import digest_of, relative_to
from penstock.tasks.setup.config.custom_algorithm import CustomAlgorithmSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.setup.config.run import ConfigT, RunConfig

_PROBE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class CustomAlgorithm:
    """The result of inspecting a custom algorithm."""

    settings: dict[str, Any]
    """All settings, with defaults for those that were left out."""
    rows: dict[str, Spec]
    """The columns that it adds to a shard."""
    files: dict[str, str]
    """Digests of its source files, by path."""
    root: str
    """The folder in which Python found its module, or its package."""
    learns_from_window: bool
    """True if it learns from rows of many rounds."""
    loss_agents: list[list[int] | None]
    """The agents whose parameters each loss trains; None of one that trains those of all together."""
    follows_minibatches: bool
    """True if it has an `after_minibatch` of its own."""

    prioritised: bool = False
    """True if it draws rows of many rounds by priority."""

    @property
    def shared(self) -> str:
        """Return the part that all agents share, so that learners can't own them; empty if there is none."""
        if not all(self.loss_agents):
            return "not all of its losses name agents whose parameters they train"
        if self.learns_from_window:
            return "it has a window, and so priorities of all agents' losses"
        return "it has an after_minibatch, which no agent owns" if self.follows_minibatches else ""

    @property
    def source(self) -> str:
        """One digest of all source files, independent of their folder."""
        return digest("".join(self.files.values()).encode())

    @property
    def unchanged(self) -> bool:
        """Return whether the files still have the digests that were taken."""
        try:
            return all(digest_of(file) == found for file, found in self.files.items())
        except OSError:
            return False


_probed: dict[str, CustomAlgorithm] = {}


def probe_algorithm(config: RunConfig) -> CustomAlgorithm:
    """Import the configured algorithm, check its settings and make it, in another process. Takes seconds, once.

    Raises:
        ConfigError: one line a mistake: a missing module or class, a wrong setting, or an error in the module.
    """
    question = question_of(config)
    if question not in _probed or not _probed[question].unchanged:
        _probed[question] = _run_probe(question, config.algorithm.name)
    return _probed[question]


def question_of(config: RunConfig) -> str:
    """Return the question that `reply` reads: environment, algorithm, the steps of a round, and Python's path."""
    settings = {"algorithm": config.algorithm.model_dump(mode="json"), "environment": config.environment.model_dump()}
    round_steps = config.schedule.round_steps if config.has_actors else None
    needed = config.shards_needed * config.environment.envs_per_tile if config.has_actors else 0
    return json.dumps({**settings, "round": (round_steps, needed), "path": sys.path}, sort_keys=True)


def _run_probe(question: str, name: str) -> CustomAlgorithm:
    answer = ask("penstock.tasks.model.algorithms.custom_probe", question, name)
    rows = {column: Spec.from_json(spec) for column, spec in answer["rows"].items()}
    return CustomAlgorithm(**{**answer, "rows": rows})


def ask(module: str, question: str, name: str) -> dict[str, Any]:
    """Return the answer of a module that calls `reply`, run as a process of its own.

    Args:
        module: the module.
        question: JSON for its standard input.
        name: the algorithm's, for messages.

    Raises:
        ConfigError: the algorithm can't be made; or its process took too long, or failed.
    """
    try:
        # -P: the working directory comes last (`load_class`), so that nothing in it can shadow one of our packages.
        done = subprocess.run(
            [sys.executable, "-P", "-m", module],
            input=question,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"algorithm.name = '{name}': importing and constructing it took more than {_PROBE_SECONDS:g} s; do no "
            f"work there"
        ) from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ConfigError(f"algorithm.name = '{name}': its process exited with status {done.returncode}: {last}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise ConfigError(answer["error"])
    return answer


def with_custom_defaults(config: ConfigT) -> ConfigT:
    """Fill in the defaults of a custom algorithm's settings, so that a run keeps those that it started with.

    Raises:
        ConfigError: as `probe_algorithm`.
    """
    if not isinstance(config.algorithm, CustomAlgorithmSettings):
        return config
    found = probe_algorithm(config)
    whole = config.model_copy(
        update={"algorithm": CustomAlgorithmSettings(name=config.algorithm.name, **found.settings)}
    )
    _probed[question_of(whole)] = found
    return whole


def custom_files(config: RunConfig) -> dict[str, str]:
    """Return digests of a custom algorithm's files, for workers to compare; nothing for those that ship."""
    if not isinstance(config.algorithm, CustomAlgorithmSettings):
        return {}
    found = probe_algorithm(config)
    return relative_to(found.root, found.files)


def custom_source(config: RunConfig) -> dict[str, str]:
    """Return the digest of a custom algorithm's source, for a run's fingerprint; nothing for those that ship."""
    if not isinstance(config.algorithm, CustomAlgorithmSettings):
        return {}
    return {config.algorithm.name: probe_algorithm(config).source}


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    algorithms = "penstock.tasks.model.algorithms"
    custom = importlib.import_module(f"{algorithms}.custom")
    contract = importlib.import_module(f"{algorithms}.contract")
    source = importlib.import_module(f"{algorithms}.source_digest")
    specs = importlib.import_module("penstock.tasks.specs")
    make_pool = importlib.import_module("penstock.tasks.environments.factory").make_pool
    build_config = importlib.import_module("penstock.tasks.setup.config.loading").build_config
    config = build_config({"environment": question["environment"], "algorithm": question["algorithm"]})
    pool = make_pool(config, 1)
    settings = config.environment
    described = dict(pool.environment)
    environment = specs.EnvironmentSpec.from_pool(settings.id, described, settings.num_envs)
    pool.close()
    try:
        algorithm = custom.make_custom(config.algorithm, environment)
        custom.check_held(algorithm, config.algorithm.name, described, *question["round"])
        window = contract.window_spec(algorithm)
        return {
            "settings": custom.typed_settings(type(algorithm), config.algorithm),
            "rows": {name: spec.to_json() for name, spec in algorithm.rows.items()},
            "files": source.source_digests(config.algorithm.name),
            "root": source.source_root(config.algorithm.name),
            "learns_from_window": window is not None,
            "prioritised": window is not None and window.priority_exponent > 0,
            "loss_agents": [loss.agents and list(loss.agents) for loss in algorithm.losses],
            "follows_minibatches": type(algorithm).after_minibatch is not contract.Algorithm.after_minibatch,
        }
    except ConfigError as error:
        return {"error": str(error)}


def reply(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the question on standard input; the module's own output goes to standard error."""
    question = json.load(sys.stdin)
    sys.path += [entry for entry in question.pop("path") if entry not in sys.path]
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        print(json.dumps(answer(question)), file=out)


if __name__ == "__main__":
    reply(_answer)
