"""DeepMind's control suite (Tassa et al. 2018, arXiv 1801.00690): dm_control's tasks as Gymnasium environments.

dm_control 1.0.50 does not run on MuJoCo 4, which Penstock's own MuJoCo tasks need: it reads a field of the model that
is no longer there. It is an optional extra for an environment with MuJoCo 3; with MuJoCo 4 its ids are refused by name.
`penstock.native.pool.control_suite` has the tasks on MuJoCo 4.
"""

from __future__ import annotations

import logging
import re
import warnings
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from penstock.native.adapters.one_array import PLAIN, Encoding, as_one_array
from penstock.native.adapters.vector_env import WrappedSource
from penstock.native.pool.arguments import folded_seed, similar_ids, where_to_look
from penstock.native.pool.control_suite import IDS as OWN_IDS
from penstock.native.pool.control_suite import PREFIX as OWN_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gymnasium.spaces import Space
    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray

PREFIX = "dm_control/"

_SEED_BITS = 32


def dm_control_source(
    env_id: str,
    num_envs: int,
    num_threads: int,
    max_episode_steps: int | None,
    settings: Mapping[str, Any],
    encoding: Encoding = PLAIN,
) -> WrappedSource:
    """Return a task as `dm_control/cartpole-balance`, without settings but Gymnasium `wrappers`.

    With `encoding.structured` those see dm_control's dictionaries, of which the leaves are made.

    Raises:
        ValueError: dm_control is not installed or does not run on this MuJoCo, no such task, or a setting; or there can
            be no such array.
    """
    if num_threads != 1:
        raise ValueError(f"{env_id} is stepped by Gymnasium, which has no threads: leave num_threads at 1")
    if unknown := sorted(set(settings) - {"wrappers"}):
        raise ValueError(f"{env_id} has no setting {', '.join(map(repr, unknown))}; dm_control's tasks have none here")
    wrappers = tuple(settings.get("wrappers", ()))
    limit = SuiteTask(env_id).step_limit if max_episode_steps is None else max_episode_steps

    def one() -> gymnasium.Env[Any, Any]:
        env: gymnasium.Env[Any, Any] = SuiteTask(env_id, structured=encoding.structured)
        if max_episode_steps is not None and max_episode_steps != -1:
            env = TimeLimit(env, max_episode_steps)
        for wrapper in wrappers:
            env = wrapper(env)
        if not encoding.one_array:
            return env
        return as_one_array(env, structured=encoding.structured, action_mask=encoding.action_mask)

    def build(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([one] * num_envs, autoreset_mode=mode)

    return WrappedSource(env_id, build, None if limit == -1 else limit, None, outlives_seeds=bool(wrappers))


def dm_control_ids() -> list[str]:
    """Return the ids of the suite's tasks; ValueError if dm_control is not installed or does not run."""
    tasks = _suite(PREFIX).ALL_TASKS
    SuiteTask(f"{PREFIX}cartpole-balance")
    return [f"{PREFIX}{domain}-{task}" for domain, task in tasks]


def dm_control_types(env_id: str) -> dict[str, type | None]:
    """Return no settings: a task has none; ValueError if dm_control is not installed or there is no such task."""
    SuiteTask(env_id)
    return {}


class SuiteTask(gymnasium.Env[Any, Any]):
    """One task: what dm_control observes, one after the other, as float64, or by name; rewards from 0 to 1.

    A seed loads the task again, since some draw their model at random. Where its time limit ends an episode, it is
    truncated.
    """

    def __init__(self, env_id: str, *, structured: bool = False) -> None:
        self._id, self._structured = env_id, structured
        self._env = self._loaded(0)
        action, observed = self._env.action_spec(), self._env.observation_spec()
        self._axis = 0 if all(len(spec.shape) == 1 for spec in observed.values()) else None  # None flattens each
        size = int(sum(np.prod(spec.shape) for spec in observed.values()))
        parts: dict[str, Space[Any]] = {name: _unbounded(spec.shape) for name, spec in observed.items()}
        self.observation_space = Dict(parts) if structured else _unbounded((size,))
        self.action_space = Box(action.minimum, action.maximum, dtype=np.float64)
        self._bounds = action.minimum, action.maximum
        limit = self._env._step_limit  # noqa: SLF001  (nothing public tells)
        self.step_limit = None if np.isinf(limit) else int(np.ceil(limit))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; with a seed, of a task that is loaded anew. ValueError without an OpenGL that it needs."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._env = self._loaded(seed)
        try:
            moment = self._env.reset()
        except Exception as error:
            if "OpenGL" not in str(error):
                raise
            raise ValueError(
                f"{self._id} draws its ground by OpenGL where an episode begins, and dm_control found none: {error}. "
                f"Set MUJOCO_GL=egl, or choose environment.id = '{OWN_PREFIX}{self._id.removeprefix(PREFIX)}', the "
                f"same task on MuJoCo 4"
            ) from error
        return self._shown(moment.observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step: observation, reward, terminated where the discount is 0, truncated at the time limit, no infos."""
        low, high = self._bounds
        moment = self._env.step(np.minimum(np.maximum(action, low), high))  # `np.clip` takes several times as long
        is_last = moment.last()
        terminated = is_last and moment.discount == 0.0
        return self._shown(moment.observation), float(moment.reward or 0.0), terminated, is_last and not terminated, {}

    def _loaded(self, seed: int) -> Any:
        suite = _suite(self._id)
        domain, _, task = self._id.removeprefix(PREFIX).partition("-")
        tasks = [f"{one}-{other}" for one, other in suite.ALL_TASKS]
        if f"{domain}-{task}" not in tasks:
            near = (f"{PREFIX}{name}" for name in similar_ids(f"{domain}-{task}", tasks))
            listed = OWN_PREFIX if _on_mujoco_4() else PREFIX  # of both, one can be made here
            raise ValueError(f"dm_control has no task {self._id!r}{where_to_look(near, listed)}")
        try:
            with _kept_quiet():
                return suite.load(domain, task, task_kwargs={"random": folded_seed(seed, _SEED_BITS)})
        except Exception as error:
            raise ValueError(_why(self._id, error)) from error

    def _shown(self, observation: Mapping[str, Any]) -> NDArray[np.float64] | dict[str, NDArray[np.float64]]:
        if self._structured:
            return {name: np.array(part, dtype=np.float64) for name, part in observation.items()}
        return np.concatenate([*observation.values()], axis=self._axis, dtype=np.float64)


def _unbounded(shape: tuple[int, ...]) -> Box:
    return Box(-np.inf, np.inf, shape, np.float64)


def envpool_twin(env_id: str) -> str:
    """Return the id of the same task in EnvPool: `envpool/CartpoleBalance-v1`."""
    words = re.split(r"[-_]", env_id.removeprefix(PREFIX))
    return f"envpool/{''.join(word[:1].upper() + word[1:] for word in words)}-v1"


def _why(env_id: str, error: Exception) -> str:
    said = f"{env_id} cannot be loaded: {type(error).__name__}: {error}"
    if not _on_mujoco_4():
        return said
    own = f"{OWN_PREFIX}{env_id.removeprefix(PREFIX)}"
    stepped_here = f"'{own}', the same task stepped by Penstock, or " if own in OWN_IDS else ""
    return (
        f"{said}. dm_control {_version('dm_control')} was made for MuJoCo 3, and {_version('mujoco')} is installed, "
        f"which the tasks that Penstock steps need: choose environment.id = {stepped_here}'{envpool_twin(env_id)}', "
        f"the same task in EnvPool (pip install 'penstock-rl[envpool]'), or install penstock-rl[dm-control] in an "
        f"environment of its own"
    )


def _on_mujoco_4() -> bool:
    return int(_version("mujoco").partition(".")[0] or 0) >= 4


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "0"


@contextmanager
def _kept_quiet() -> Iterator[None]:
    """Take away the handlers that absl, with which dm_control logs, gives the root logger: they print everybody's."""
    before = list(logging.root.handlers)
    try:
        yield
    finally:
        logging.root.handlers[:] = before


def _suite(env_id: str) -> Any:
    try:
        with _kept_quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a missing display: nothing is drawn
            from dm_control import suite  # noqa: PLC0415  (an optional extra)
    except ImportError as error:
        raise ValueError(
            f"{env_id} needs dm_control, and importing it failed: {error}. Install it with MuJoCo 3, in an environment "
            f"of its own: pip install 'penstock-rl[dm-control]'; or choose an id of EnvPool, such as "
            f"{envpool_twin('cartpole-balance')}"
        ) from error
    return suite
