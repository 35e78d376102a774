"""Starts a run from a commit of another one with other numbers for its algorithm, as a population of runs does."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

from penstock.storage.errors import ConfigError
from penstock.storage.runs.continuing.forking import fork_run
from penstock.storage.runs.run import RunFolder, stored_settings
from penstock.tasks.driver.run import describe_run
from penstock.tasks.setup.config.consent import record_consent, require_consent
from penstock.tasks.setup.config.loading import build_config, merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.tasks.setup.config.algorithm_base import AlgorithmSettings

_CHANGEABLE = "algorithm."
_STORED = {"algorithm.priority_exponent"}
"""Settings that a checkpoint's numbers have been computed with."""
_OF_THE_START = {"algorithm.initial_log_std", "algorithm.initial_temperature"}
"""Settings of the first parameters alone."""
_SWITCHES = {"algorithm.target_kl": 0.0, "algorithm.final_entropy_weight": None, "algorithm.noisy_scale": 0.0}
"""Settings by the value at which a checkpoint has no counters or parameters for them."""


def branch_run(source: RunFolder, name: str, stage: int, values: Mapping[str, float]) -> None:
    """Start a run that continues another one's parameters, optimizer, environments and history with other numbers.

    Its identity names the commit that it began from, so it is no run that these settings alone would give. Nothing is
    done if the run exists; an interrupted call is repeated.

    Args:
        source: a run; no flow needs to be stopped.
        name: of the new run, in the same store.
        stage: a committed stage of the source that did not end it.
        values: numbers of the algorithm by full names, such as `algorithm.learning_rate`.

    Raises:
        ConfigError: a value is wrong, or as `fork_run`.
        PenstockError: as `fork_run`.
    """
    target = RunFolder(source.root, name)
    if target.exists():
        return
    settings = stored_settings(require_consent(source)["config"])
    algorithm = build_config(settings).algorithm
    check_changeable("values", algorithm, values)
    for path, value in values.items():
        check_switches("values", path, (getattr(algorithm, path.removeprefix(_CHANGEABLE), value), value))
    changed: dict[str, Any] = {"name": name, "continues": source.log.digest_of(stage)}
    table = {path.removeprefix(_CHANGEABLE): value for path, value in values.items()}
    config = build_config(merge({**settings, **changed}, {"algorithm": table}))
    fork_run(source, target, stage, description=describe_run(config))
    with suppress(ConfigError):  # without a place to keep it, another command asks for it
        record_consent(target)


def check_changeable(what: str, algorithm: AlgorithmSettings, values: Mapping[str, object]) -> None:
    """Refuse settings that a run can't change on its way: a checkpoint may depend on all but numbers with a fraction.

    Args:
        what: the parameter that names them, for the message.
        algorithm: whose settings they are.
        values: a value of each setting by its full name.

    Raises:
        ConfigError: one is not the algorithm's, is no such number, or counts at a run's start alone.
    """
    fixed = [path for path, value in values.items() if not has_fractions(algorithm, path, value)]
    if at_start := sorted(_OF_THE_START & {*values}):
        raise ConfigError(f"{what}: {', '.join(at_start)} counts at a run's start alone; leave it out")
    if _STORED & {*values}:
        raise ConfigError(
            f"{what}: {', '.join(sorted(_STORED & {*values}))} can't change while a run is trained: its checkpoints "
            f"have priorities that were raised to it"
        )
    if fixed:
        raise ConfigError(
            f"{what}: {', '.join(sorted(fixed))} can't change while a run is trained; expected settings of the "
            f"algorithm whose values are numbers with a fraction, such as learning_rate with 0.01 or 1.0"
        )


def has_fractions(algorithm: AlgorithmSettings, path: str, value: object) -> bool:
    """Return whether the algorithm's setting of that full name is a number with a fraction, by its type.

    Of an algorithm of the user's own, whose settings are not declared here, the type is that of the value.
    """
    if not path.startswith(_CHANGEABLE):
        return False
    field = type(algorithm).model_fields.get(path.removeprefix(_CHANGEABLE))
    if field is None:
        return isinstance(value, float)
    return isinstance(value, int | float) and float in (field.annotation, *get_args(field.annotation))


def check_switches(what: str, path: str, values: Iterable[object]) -> None:
    """Refuse values of a setting of which some switch a part of the algorithm on and others off.

    Args:
        what: the parameter that names it, for the message.
        path: full name of the setting.
        values: that a run and its branches have.

    Raises:
        ConfigError: a checkpoint of one would lack what the others need.
    """
    given = list(values)
    if path in _SWITCHES and len({value == _SWITCHES[path] for value in given}) > 1:
        raise ConfigError(
            f"{what}: {path} = {' and '.join(map(str, given))}: a run can't switch it on or off while it is trained; "
            f"leave out {_SWITCHES[path]}, or the setting"
        )
