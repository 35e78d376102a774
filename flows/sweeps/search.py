"""Searches a space of settings with Optuna: each trial is a run, and a pruner stops runs that fall behind.

Optuna's study is not stored: trials are records of the sweep, and their results are the runs' commits. For a question
to Optuna, its study is built from these anew. Trial n is proposed, and judged, by the results of trials 0 to n minus
`runs_at_once`, whichever run is faster: the same search ends with the same trials, killed or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock.flows.sweeps.points import check_points, check_sweep_name, computed_settings, make_point
from penstock.flows.sweeps.processes import TrainingPool, refuse_problems
from penstock.flows.sweeps.progress import Progress
from penstock.flows.sweeps.space import Range, check_space, describe_space, resolved_space, rounded
from penstock.flows.sweeps.table import best_first, progress_row
from penstock.storage.errors import ConfigError
from penstock.tasks.seeds import Purpose, seed_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import optuna

    from penstock.flows.sweeps.points import Point
    from penstock.flows.sweeps.records import SweepRecords
    from penstock.flows.sweeps.space import Choice
    from penstock.flows.sweeps.table import SweepRow
    from penstock.tasks.setup.config.run import TrainConfig

PrunerName: TypeAlias = Literal["median", "none"]

_SUFFIX_CHARACTERS = len("-0000")
_REDRAWS = 20
"""Limit of proposals for one trial that repeat an earlier trial."""
_SAMPLER_SEEDS = 2**32


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A search, checked."""

    name: str
    space: Mapping[str, Choice]
    """By full names, sorted."""
    config: TrainConfig
    trials: int
    runs_at_once: int
    seed: int
    pruner: PrunerName
    startup_trials: int
    """Number of trials that are drawn at random, and trained to their end, before results guide the search."""
    warmup_stages: int
    """Number of stages that no run is stopped before."""


@dataclass(slots=True)
class Trial:
    """A trial: a point, how far its run is, and where it was pruned."""

    number: int
    point: Point
    progress: Progress
    pruned: Mapping[str, Any] | None
    """Record of the decision to prune it: its stage and return."""
    diverged: Mapping[str, Any] | None = None
    """Record that its run has diverged: its problem."""
    judged: int = 0
    """Number of stages that the pruner has seen."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """Proposal of Optuna: values, or places in lists of values."""

    @property
    def is_ended(self) -> bool:
        """Return whether its result is known."""
        return self.pruned is not None or self.diverged is not None or self.progress.is_finished


def plan_search(
    name: str,
    space: Mapping[str, Choice],
    config: TrainConfig,
    *,
    trials: int,
    runs_at_once: int,
    seed: int,
    pruner: PrunerName,
    startup_trials: int,
    warmup_stages: int,
) -> SearchPlan:
    """Check the parameters of a search; nothing is started.

    Raises:
        ConfigError: a name or a value is wrong, or Optuna is not installed.
    """
    _import_optuna()
    check_sweep_name(name, _SUFFIX_CHARACTERS)
    space = resolved_space(space)
    check_space(name, config, space)
    return SearchPlan(name, space, config, trials, runs_at_once, seed, pruner, startup_trials, warmup_stages)


def run_search(plan: SearchPlan, records: SweepRecords, show: Callable[[Sequence[SweepRow]], None]) -> list[SweepRow]:
    """Train the trials that have not ended; a search that was stopped continues with the same trials.

    Args:
        plan: the search. Of its parameters only `trials` may differ from those that it was begun with.
        records: of the sweep.
        show: called with the rows whenever a trial began or ended.

    Returns:
        A row per trial, the best first.

    Raises:
        ConfigError: it was begun with other parameters.
        PenstockError: runs failed; nothing is proposed after the first failure, and a restart resumes.
    """
    records.begin(
        "search",
        {
            "space": describe_space(plan.space),
            "config": computed_settings(plan.config),
            "runs_at_once": plan.runs_at_once,
            "seed": plan.seed,
            "pruner": plan.pruner,
            "startup_trials": plan.startup_trials,
            "warmup_stages": plan.warmup_stages,
        },
    )
    trials: list[Trial] = []
    problems: dict[str, str] = {}

    def show_all() -> None:
        show(_rows(trials, problems))

    with TrainingPool(plan.name, plan.runs_at_once) as pool:
        while pool.running or len(trials) < plan.trials:
            while not problems and _may_propose(plan, trials, pool):
                trial = _next_trial(plan, records, trials)
                trials.append(trial)
                _judge(plan, records, trials, trial)
                if not trial.is_ended:
                    can_prune = _pruner(plan, _results(plan, trials, trial)) is not None
                    pool.start(trial.point, trial.progress.stages + 1 if can_prune else None, waits=can_prune)
                show_all()
            if problems and not pool.running:
                break
            for point, problem in pool.ended():
                trial = next(trial for trial in trials if trial.point is point)
                trial.progress.update()
                if point.name in pool.diverged:
                    trial.diverged = records.keep(f"diverged/{trial.number:04d}.json", {"problem": problem})
                elif not trial.is_ended:
                    problems[point.name] = problem or "its process left it before its end"
                show_all()
            for trial in trials:
                if not trial.is_ended and trial.progress.update():
                    _judge(plan, records, trials, trial)
                    if _pruner(plan, _results(plan, trials, trial)) is not None:
                        pool.allow(trial.point, 0 if trial.pruned else trial.progress.stages + 1)
    refuse_problems(problems, plan.trials)
    return _rows(trials, problems)


def _rows(trials: Sequence[Trial], problems: Mapping[str, str]) -> list[SweepRow]:
    return best_first(
        progress_row(
            trial.progress,
            trial=trial.number,
            **{"pruned at stage": trial.pruned["stage"] if trial.pruned else None},
            problem=trial.diverged["problem"] if trial.diverged else problems.get(trial.point.name),
        )
        for trial in trials
    )


def _may_propose(plan: SearchPlan, trials: Sequence[Trial], pool: TrainingPool) -> bool:
    return len(trials) < plan.trials and pool.has_room and all(trial.is_ended for trial in _known(plan, trials))


def _known(plan: SearchPlan, trials: Sequence[Trial], number: int | None = None) -> Sequence[Trial]:
    """Return the trials whose results a trial may depend on: by default the next one."""
    number = len(trials) if number is None else number
    return trials[: max(0, number - plan.runs_at_once + 1)]


def _results(plan: SearchPlan, trials: Sequence[Trial], trial: Trial) -> Sequence[Trial]:
    return _known(plan, trials, trial.number)


def _next_trial(plan: SearchPlan, records: SweepRecords, trials: Sequence[Trial]) -> Trial:
    """Propose a trial, record it, and return it; one that was recorded before is not proposed again."""
    number = len(trials)
    name = f"trials/{number:04d}.json"
    found = records.read(name) or records.keep(name, {"choices": _propose(plan, trials)})
    choices = found["choices"]
    point = _point(plan, number, choices)
    pruned, diverged = (records.read(f"{kind}/{number:04d}.json") for kind in ("pruned", "diverged"))
    trial = Trial(number, point, Progress(point), pruned, diverged, choices=choices)
    trial.progress.update()
    return trial


def _point(plan: SearchPlan, number: int, choices: Mapping[str, Any]) -> Point:
    values = {
        path: choices[path] if isinstance(among, Range) else among[choices[path]] for path, among in plan.space.items()
    }
    return make_point(plan.name, plan.config, values, f"{plan.name}-{number:04d}")


def _propose(plan: SearchPlan, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return Optuna's proposal, one that no earlier trial had if there is one within some draws.

    A proposal that no run can have, such as settings that exclude each other, is drawn again. The second half of the
    draws is at random: the sampler may prefer what it has seen, whatever its seed.

    Raises:
        ConfigError: no run can have any of the proposals.
    """
    earlier = [dict(trial.choices) for trial in trials]
    possible, error = None, None
    for redraw in range(2 * _REDRAWS):
        seed = seed_of(plan.seed, Purpose.SWEEP, len(trials), redraw) % _SAMPLER_SEEDS
        study = _study(plan, _known(plan, trials), seed, at_random=redraw >= _REDRAWS)
        proposed = study.ask(_distributions(plan.space)).params
        choices = {path: rounded_choice(plan.space[path], proposed[path]) for path in plan.space}
        try:
            check_points([_point(plan, len(trials), choices)])
        except ConfigError as found:
            error = found
            continue
        if choices not in earlier:
            return choices
        possible = possible or choices
    if possible is None:
        assert error is not None
        raise error
    return possible


def rounded_choice(among: Choice, value: Any) -> Any:
    """Return a proposed value with six significant digits, or a place in a list as it is."""
    return among.nearest(rounded(value)) if isinstance(among, Range) else value


def _judge(plan: SearchPlan, records: SweepRecords, trials: Sequence[Trial], trial: Trial) -> None:
    """Let the pruner see each stage that was evaluated since; record its decision to prune the trial."""
    pruner = _pruner(plan, _results(plan, trials, trial))
    stages = [stage for stage in sorted(trial.progress.evaluations) if stage >= trial.judged]
    trial.judged = trial.progress.stages
    if pruner is None or trial.pruned is not None or trial.diverged is not None:
        return
    study = _study(plan, _results(plan, trials, trial), 0)
    newest = trial.progress.newest
    for stage in stages:
        if newest is not None and newest.finished and stage == newest.stage:
            return  # it has ended of itself
        seen = {one: value for one, value in trial.progress.evaluations.items() if one <= stage}
        if pruner.prune(study, _frozen(plan, trial, seen)):
            decision = {"stage": stage, "return": trial.progress.evaluations[stage]}
            trial.pruned = records.keep(f"pruned/{trial.number:04d}.json", decision)
            return


def _pruner(plan: SearchPlan, results: Sequence[Trial]) -> optuna.pruners.BasePruner | None:
    """Return the pruner; None if it can prune nothing, as without enough results."""
    complete = sum(trial.pruned is None and trial.diverged is None for trial in results)
    if plan.pruner == "none" or not complete or complete < plan.startup_trials:
        return None
    pruners = _import_optuna().pruners
    return pruners.MedianPruner(n_startup_trials=plan.startup_trials, n_warmup_steps=plan.warmup_stages)


def _study(plan: SearchPlan, results: Sequence[Trial], seed: int, *, at_random: bool = False) -> optuna.Study:
    """Return a study of ended trials, whose next proposal follows from them and a seed."""
    optuna = _import_optuna()
    samplers = optuna.samplers
    sampler = (
        samplers.RandomSampler(seed=seed)
        if at_random
        else samplers.TPESampler(seed=seed, n_startup_trials=plan.startup_trials)
    )
    study = optuna.create_study(study_name=plan.name, direction="maximize", sampler=sampler)
    study.add_trials([_frozen(plan, trial, trial.progress.evaluations) for trial in results])
    return study


def _frozen(plan: SearchPlan, trial: Trial, evaluations: Mapping[int, float]) -> optuna.trial.FrozenTrial:
    """Return a trial as Optuna knows it; a pruned one knows nothing of stages after that."""
    optuna = _import_optuna()
    states, value = optuna.trial.TrialState, None
    state = states.RUNNING
    if trial.diverged is not None:
        state = states.FAIL
    elif trial.pruned is not None:
        state, value = states.PRUNED, trial.pruned["return"]
        evaluations = {stage: one for stage, one in evaluations.items() if stage <= trial.pruned["stage"]}
    elif trial.progress.is_finished:
        state, value = states.COMPLETE, trial.progress.score()
        if value is None:
            raise ConfigError(
                f"run '{trial.point.name}' has ended without an evaluation, so the search can't compare it; evaluate "
                f"more often (schedule.evaluate_every_stages)"
            )
    return optuna.trial.create_trial(
        state=state,
        value=value,
        params=dict(trial.choices),
        distributions=_distributions(plan.space),
        intermediate_values=dict(evaluations),
    )


def _distributions(space: Mapping[str, Choice]) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return Optuna's description of a space; lists are described by the places in them, which Optuna can keep."""
    distributions = _import_optuna().distributions
    return {
        path: distributions.CategoricalDistribution(tuple(range(len(among))))
        if not isinstance(among, Range)
        else distributions.IntDistribution(int(among.low), int(among.high), log=among.log)
        if among.is_whole
        else distributions.FloatDistribution(float(among.low), float(among.high), log=among.log)
        for path, among in space.items()
    }


def _import_optuna() -> Any:
    try:
        import optuna  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ConfigError("a search needs Optuna: pip install 'penstock-rl[sweeps]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
