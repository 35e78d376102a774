"""EnvPool's environments (Weng et al. 2022, arXiv 2206.10558), stepped by its own vector environment in C++ threads.

EnvPool is seeded when it is made, and its generators run on over episodes: a seed therefore makes a new EnvPool. It
resets in the step after an episode's end; where a round needs it in the same step, the environments that ended are
reset at once. It is an optional extra that is imported here, when such a pool is made.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from penstock.native.adapters.batched_array import BatchedArray, with_true_bounds
from penstock.native.adapters.one_array import MASK, PLAIN, Encoding
from penstock.native.adapters.round_steps import RoundStep, RoundVector
from penstock.native.adapters.vector_env import WrappedSource
from penstock.native.pool.arguments import folded_seed, refuse_unknown, similar_ids, where_to_look

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray

    from penstock.native.interface import Infos

PREFIX = "envpool/"

_SEED_BITS = 31
_NO_LIMIT = 2**31 - 1
_MASKS = (MASK, "legal_action_mask")
_MADE_HERE = {
    *("num_envs", "batch_size", "num_threads", "max_num_players", "base_path", "seed", "env_seed"),
    *("gym_reset_return_info", "max_episode_steps", "reward_threshold"),
}


def envpool_source(
    env_id: str,
    num_envs: int,
    num_threads: int,
    max_episode_steps: int | None,
    settings: Mapping[str, Any],
    encoding: Encoding = PLAIN,
) -> WrappedSource:
    """Return an environment as `envpool/CartpoleBalance-v1`, with EnvPool's settings by its names.

    With `encoding.one_array` Discrete and Dict observations are encoded as one array, as Gymnasium's FlattenObservation
    does it. A mask in 'info' may be called `legal_action_mask`, as in the tasks of PGX. An episode that ends by itself
    in the last allowed step counts as truncated alone: EnvPool does not tell.

    Raises:
        ValueError: EnvPool or what the task needs is not installed, or no such task, setting, value or autoreset mode;
            or the task has several players, or no such mask.
    """
    name = env_id.removeprefix(PREFIX)
    offered = _offered(env_id)
    refuse_unknown(env_id, sorted(set(settings) - set(offered) - {"render_mode"}), offered)
    if settings.get("render_mode") is not None:
        raise ValueError(f"{env_id} can't be drawn here: leave render_mode out")
    values = {key: _like(key, value, offered[key]) for key, value in settings.items() if key in offered}
    if max_episode_steps is not None:
        values["max_episode_steps"] = _NO_LIMIT if max_episode_steps == -1 else max_episode_steps
    spec = _made(env_id, lambda envpool: envpool.make_spec(name, **values))
    if spec.config.max_num_players != 1:
        raise ValueError(
            f"{env_id} has {spec.config.max_num_players} players, whose rows EnvPool gives in any order; expected a "
            f"task of one player"
        )
    mask_name = _mask_among_infos(env_id, spec) if encoding.action_mask == "info" else None

    def build(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        if mode == AutoresetMode.DISABLED:
            raise ValueError(f"{env_id}: EnvPool resets by itself; autoreset_mode is NextStep or SameStep")

        def make(seeds: Sequence[int]) -> Any:
            arguments = {**values, "num_envs": num_envs, "num_threads": num_threads, "seed": [*map(int, seeds)]}
            return _made(env_id, lambda envpool: envpool.make_gymnasium(name, **arguments))

        asked = values.get("max_episode_steps", _NO_LIMIT)
        return EnvPoolVector(env_id, make, spec, num_envs, mode, asked, encoding=encoding, mask_name=mask_name)

    limit = int(spec.config.max_episode_steps)
    threshold = getattr(spec.config, "reward_threshold", None)
    return WrappedSource(env_id, build, None if limit >= _NO_LIMIT else limit, threshold)


def envpool_ids() -> list[str]:
    """Return the ids of all tasks, those of several players included; ValueError if EnvPool is not installed."""
    return [f"{PREFIX}{name}" for name in _made(PREFIX, lambda envpool: envpool.list_all_envs())]


def envpool_types(env_id: str) -> dict[str, type | None]:
    """Return the names of a task's settings with the types of their values; ValueError as `envpool_source`."""
    plain = (bool, int, float, str)
    return {name: type(value) if type(value) in plain else None for name, value in _offered(env_id).items()}


class EnvPoolVector(RoundVector):
    """An EnvPool with seeds as `SyncVectorEnv` takes them, in Gymnasium's next-step or same-step mode.

    `make` makes an EnvPool of seeds, one for each environment. Some of its tasks ignore the time limit that they are
    given, so `limit` is kept here too. `mask_name` is that of the mask among the infos; None where it is not there.
    """

    def __init__(
        self,
        env_id: str,
        make: Callable[[Sequence[int]], Any],
        spec: Any,
        num_envs: int,
        mode: AutoresetMode,
        limit: int = _NO_LIMIT,
        *,
        encoding: Encoding,
        mask_name: str | None = None,
    ) -> None:
        self._id, self._make, self._limit = env_id, make, limit
        self._env: Any = None
        self._same_step = mode == AutoresetMode.SAME_STEP
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": mode, "render_modes": []}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the precision of its bounds
            observed, self.single_action_space = spec.gymnasium_observation_space, spec.gymnasium_action_space
        observed = with_true_bounds(observed)
        self._mask_name = mask_name
        self._encoder: BatchedArray | None = None
        if encoding.one_array and BatchedArray.can_encode(observed):
            self._encoder = BatchedArray(observed, self.single_action_space, encoding)
        self.single_observation_space = observed if self._encoder is None else self._encoder.space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        is_number = isinstance(self.single_action_space, Discrete)
        self._action_dtype = np.dtype(np.int32) if is_number else self.single_action_space.dtype
        self._current: Any = None
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._over = np.zeros(num_envs, dtype=np.bool_)
        self._cut = np.zeros(num_envs, dtype=np.bool_)

    def reset(  # type: ignore[override]
        self, *, seed: Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Infos]:
        """Start episodes; `seed` is one, or None, an environment.

        Raises:
            ValueError: Some environments have a seed and others none, or a mask selects some.
        """
        mask = (options or {}).get("reset_mask")
        if seed is not None and any(value is not None for value in seed):
            if mask is not None or any(value is None for value in seed):
                raise ValueError(
                    f"{self._id}: EnvPool seeds its environments together, when it is made; give each a seed, or none"
                )
            self._begin([folded_seed(value, _SEED_BITS) for value in seed if value is not None])
        elif self._env is None:
            self._begin((np.random.SeedSequence().generate_state(self.num_envs) >> 1).tolist())
        elif mask is not None:
            self._current = self._reset_some(self._current, np.flatnonzero(mask))
            return self._current, {}
        for kept in (self._length, self._over, self._cut):
            kept[:] = 0
        self._current = self._encoded(*self._running().reset())
        return self._current, {}

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step; in same-step mode `final_obs` has the last observations of the episodes that ended."""
        given = np.ascontiguousarray(actions, dtype=self._action_dtype)
        seen, reward, terminated, truncated, reports = self._running().step(given)
        self._current = self._encoded(seen, reports)
        begun = self._over.copy()
        if self._cut.any():  # EnvPool knows nothing of their end, and has stepped them
            terminated, truncated = terminated & ~self._cut, truncated & ~self._cut
            reward = np.where(self._cut, 0, reward).astype(reward.dtype)
            self._current = self._reset_some(self._current, np.flatnonzero(self._cut))
        self._length = np.where(begun, 0, self._length + 1)
        cut = (self._length >= self._limit) & ~(terminated | truncated)
        truncated = truncated | cut
        over = terminated | truncated
        infos: Infos = {}
        for name, value in reports.items():
            if isinstance(value, np.ndarray) and value.shape[:1] == (self.num_envs,) and name != "env_id":
                infos |= {name: value, f"_{name}": np.ones(self.num_envs, dtype=np.bool_)}
        if self._same_step and over.any():
            final = np.full(self.num_envs, None, dtype=object)
            for env in np.flatnonzero(over).tolist():
                final[env] = _row(self._current, env)
            infos |= {"final_obs": final, "_final_obs": over}
            self._current = self._reset_some(self._current, np.flatnonzero(over))
        elif not self._same_step:
            self._over, self._cut = over, cut
        return self._current, reward, terminated, truncated, infos

    def round_step(self, actions: Any, out: NDArray[Any]) -> RoundStep:
        """Step in same-step mode, without infos; the observations are arrays."""
        given = np.ascontiguousarray(actions, dtype=self._action_dtype)
        seen, reward, terminated, truncated, reports = self._running().step(given)
        self._fill(out, seen, reports)
        over = terminated | truncated
        if self._limit < _NO_LIMIT:
            self._length += 1
            cut = (self._length >= self._limit) & ~over
            truncated, over = truncated | cut, over | cut
        final: dict[int, Any] = {}
        if over.any():
            ended = np.flatnonzero(over)
            final = dict(zip(ended.tolist(), out[ended], strict=True))
            rows = np.empty((len(ended), *out.shape[1:]), dtype=out.dtype)
            self._fill(rows, *self._running().reset(ended.astype(np.int32)))
            out[ended], self._length[ended] = rows, 0
        self._current = out
        return RoundStep(out, reward, terminated, truncated, final)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002  (Gymnasium's signature)
        """Close the EnvPool."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _begin(self, seeds: Sequence[int]) -> None:
        self.close_extras()
        made = self._make(seeds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the precision of its bounds, which it now makes
            _ = made.observation_space, made.action_space
        self._env = made

    def _running(self) -> Any:
        if self._env is None:
            raise RuntimeError(f"{self._id}: no environment is ready: reset() first")
        return self._env

    def _reset_some(self, current: Any, envs: NDArray[np.int64]) -> Any:
        rows = self._encoded(*self._running().reset(envs.astype(np.int32)))
        self._length[envs], self._over[envs], self._cut[envs] = 0, False, False
        return _replaced(current, envs, rows)

    def _encoded(self, seen: Any, reports: Mapping[str, Any]) -> Any:
        return seen if self._encoder is None else self._encoder(seen, mask=self._mask_in(reports))

    def _fill(self, out: NDArray[Any], seen: Any, reports: Mapping[str, Any]) -> None:
        if self._encoder is None:
            out[...] = seen
        else:
            self._encoder(seen, out, mask=self._mask_in(reports))

    def _mask_in(self, reports: Mapping[str, Any]) -> Any:
        return None if self._mask_name is None else reports[self._mask_name]


def _mask_among_infos(env_id: str, spec: Any) -> str:
    """Return the name of a task's mask among its infos; ValueError where it has none there."""
    given = [*spec.state_array_spec]
    if named := [name for name in _MASKS if f"info:{name}" in given]:
        return named[0]
    remedy = "choose action_mask = 'observation'" if f"obs:{MASK}" in given else "leave it out"
    raise ValueError(
        f"action_mask = 'info': {env_id} has neither {' nor '.join(map(repr, _MASKS))} among its infos; {remedy}"
    )


def _row(batch: Any, env: int) -> Any:
    return {name: _row(part, env) for name, part in batch.items()} if isinstance(batch, dict) else batch[env].copy()


def _replaced(batch: Any, envs: NDArray[np.int64], rows: Any) -> Any:
    """Return a batch with other rows for some environments; EnvPool may still own the memory of the given one."""
    if isinstance(batch, dict):
        return {name: _replaced(part, envs, rows[name]) for name, part in batch.items()}
    changed = batch.copy()
    changed[envs] = rows
    return changed


def _offered(env_id: str) -> dict[str, Any]:
    """Return the settings of a task with their defaults."""
    name = env_id.removeprefix(PREFIX)
    known = _made(env_id, lambda envpool: envpool.list_all_envs())
    if name not in known:
        near = (f"{PREFIX}{match}" for match in similar_ids(name, known))
        raise ValueError(f"EnvPool has no environment {env_id!r}{where_to_look(near, PREFIX)}")
    config = _made(env_id, lambda envpool: envpool.make_spec(name)).config
    return {key: value for key, value in config._asdict().items() if key not in _MADE_HERE}


def _made(env_id: str, make: Callable[[Any], Any]) -> Any:
    """Import EnvPool and call a function with it."""
    try:
        import envpool  # noqa: PLC0415  (an optional extra)
    except ImportError as error:
        raise ValueError(
            f"{env_id} needs EnvPool, and importing it failed: {error}. Install it with: pip install "
            f"'penstock-rl[envpool]'"
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the precision of its bounds
            return make(envpool)
    except Exception as error:
        raise ValueError(f"EnvPool cannot make {env_id}: {type(error).__name__}: {error}") from error


def _like(name: str, value: Any, default: Any) -> Any:
    """Convert `value` to EnvPool's type: settings from a file have floats for integers, and lists for tuples."""
    kind, is_bool = type(default), isinstance(value, (bool, np.bool_))
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not is_bool
    if kind is bool:
        right = is_bool
    elif kind is int:
        right = is_number and float(value).is_integer()
    elif kind is float:
        right = is_number
    else:
        right = isinstance(value, (list, tuple)) if kind in {list, tuple} else isinstance(value, kind)
    if not right:
        raise ValueError(f"{name} must be {kind.__name__}, got {value!r}")
    return kind(value)
