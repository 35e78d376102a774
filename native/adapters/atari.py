"""Atari: ale-py's own vector environment, made to keep Gymnasium's conventions for seeds, masks and final observations.

ale-py is licensed under GPL-2.0. It is an optional extra that is imported here, when an Atari pool is made, and nothing
of it is linked into or shipped with this package.
"""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from penstock.native.adapters.vector_env import WrappedSource
from penstock.native.pool.arguments import folded_seed, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.native.adapters.vector_env import Stepped
    from penstock.native.interface import Infos

PREFIX = "ALE/"

_SEED_BITS = 31
_MADE_HERE = {"self", "game", "num_envs", "num_threads", "autoreset_mode", "batch_size"}


def atari_source(
    env_id: str,
    num_envs: int,
    num_threads: int,
    max_episode_steps: int | None,
    settings: Mapping[str, Any],
    *,
    batch_size: int | None = None,
) -> WrappedSource:
    """Return an Atari game as `ALE/Pong-v5`, with ale-py's settings by ale-py's names.

    With a `batch_size` it is stepped asynchronously, for `AtariBatches`. Settings not given are those of the id (v5
    repeats actions with probability 0.25) and else AtariVectorEnv's.

    Raises:
        ValueError: ale-py is not installed, or no such game, setting, value or autoreset mode.
    """
    vector_class = _vector_class(env_id)
    if env_id not in gymnasium.registry:
        games = [name for name in gymnasium.registry if name.startswith(PREFIX)]
        near = get_close_matches(env_id, games, n=3, cutoff=0.4)
        raise ValueError(f"no Atari game is called {env_id!r}; similar: {', '.join(near) or 'none'}")
    offered = _offered(vector_class)
    refuse_unknown(env_id, sorted(set(settings) - set(offered)), offered)
    values = offered | gymnasium.spec(env_id).kwargs | {"batch_size": batch_size or num_envs}
    values |= {name: _like(name, value, offered[name]) for name, value in settings.items()}
    if values["frameskip"] < 1:
        raise ValueError(f"frameskip must be at least 1, got {values['frameskip']}")
    if max_episode_steps == -1:
        raise ValueError(f"{env_id}: ale-py can't disable the time limit, expected a number of steps of at least 1")
    if max_episode_steps is not None:
        if "max_num_frames_per_episode" in settings:
            raise ValueError("give max_episode_steps or max_num_frames_per_episode, not both: they set the same limit")
        values["max_num_frames_per_episode"] = max_episode_steps * values["frameskip"]

    def build(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        if mode == AutoresetMode.DISABLED:
            raise ValueError(f"{env_id}: ale-py resets by itself; autoreset_mode is NextStep or SameStep")
        try:
            made = vector_class(num_envs=num_envs, num_threads=num_threads, autoreset_mode=mode, **values)
        except (gymnasium.error.Error, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{env_id} cannot be made with {dict(settings)}: {error}") from error
        return AtariVector(made)

    limit = -(-values["max_num_frames_per_episode"] // values["frameskip"])
    return WrappedSource(env_id, build, limit, gymnasium.spec(env_id).reward_threshold)


def atari_ids() -> list[str]:
    """Return the ids of all games; ValueError if ale-py is not installed."""
    _vector_class(PREFIX)
    return [name for name in gymnasium.registry if name.startswith(PREFIX)]


def atari_types(env_id: str) -> dict[str, type | None]:
    """Return the names of ale-py's settings with the types of their values; ValueError if it is not installed."""
    return {name: type(default) for name, default in _offered(_vector_class(env_id)).items()}


class AtariVector(VectorWrapper[Any, Any, Any]):
    """AtariVectorEnv with seeds as `SyncVectorEnv` takes them and a mask for its final observations."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._same_step = env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP

    def reset(  # type: ignore[override]
        self, *, seed: Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], Infos]:
        """Start episodes; `seed` is one, or None, an environment, masked out or not."""
        if seed is None:
            return self.env.reset(options=options)
        seeds = np.array([-1 if value is None else folded_seed(value, _SEED_BITS) for value in seed])
        mask = (options or {}).get("reset_mask")
        return self.env.reset(seed=seeds if mask is None else seeds[mask], options=options)  # type: ignore[arg-type]

    def step(self, actions: Any) -> Stepped:
        """Step; in same-step mode `_final_obs` is the mask of the environments whose episode ended."""
        return self._with_mask(self.env.step(actions))

    def send(self, actions: Any) -> None:
        """Send actions to the environments of the latest batch."""
        self.env.send(actions)  # type: ignore[attr-defined]

    def recv(self) -> Stepped:
        """Wait for the next batch; its infos are those of `step`, and `env_id`."""
        return self._with_mask(self.env.recv())  # type: ignore[attr-defined]

    def _with_mask(self, result: Stepped) -> Stepped:
        infos = result[4]
        if self._same_step and "final_obs" in infos:
            infos["_final_obs"] = np.logical_or(result[2], result[3])
        return result


def _vector_class(env_id: str) -> Callable[..., VectorEnv[Any, Any, Any]]:
    try:
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            f"{env_id} needs ale-py (GPL-2.0; it brings the games along), and importing it failed: {error}. Install it "
            f"with: pip install 'penstock-rl[atari]'"
        ) from error
    return cast("Callable[..., VectorEnv[Any, Any, Any]]", AtariVectorEnv)


def _offered(vector_class: Callable[..., VectorEnv[Any, Any, Any]]) -> dict[str, Any]:
    fields = inspect.signature(vector_class).parameters
    return {name: field.default for name, field in fields.items() if name not in _MADE_HERE}


def _like(name: str, value: Any, default: Any) -> Any:
    """Convert `value` to ale-py's type: settings from a configuration file have floats for integers."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if isinstance(default, bool):
        right = isinstance(value, (bool, np.bool_))
    elif isinstance(default, int):
        right = is_number and float(value).is_integer()
    else:
        right = is_number
    if not right:
        raise ValueError(f"{name} must be {type(default).__name__}, got {value!r}")
    return type(default)(value)
