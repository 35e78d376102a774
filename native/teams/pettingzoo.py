"""PettingZoo's environments (Terry et al. 2021, arXiv 2009.14471) by family and name, MPE's from the package mpe2.

One of the user's own with PettingZoo's interface is `pettingzoo/module:function`, whose function or class makes it.

Agents that act at the same time are stepped so; games of turns, which have no such interface, are stepped turn by turn.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import warnings
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.native.adapters.vector_env import WrappedSource
from penstock.native.pool.arguments import similar_ids, where_to_look
from penstock.native.teams.team_env import ParallelTeam, TeamEnv, TurnTeam
from penstock.native.teams.team_vector import TeamVector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.vector import AutoresetMode, VectorEnv

PREFIX = "pettingzoo/"

_PACKAGES = {
    "atari": "pettingzoo.atari",
    "butterfly": "pettingzoo.butterfly",
    "classic": "pettingzoo.classic",
    "mpe": "mpe2",
    "sisl": "pettingzoo.sisl",
}
"""By family, the package that has its environments."""
_NEEDED = {
    "atari": "multi_agent_ale_py",
    "butterfly": "pygame",
    "butterfly/pistonball": "pymunk",
    "classic/chess": "chess",
    "classic/connect_four": "pygame",
    "classic/go": "pygame",
    "classic/hanabi": "shimmy",
    "classic/leduc_holdem": "rlcard",
    "classic/rps": "pygame",
    "classic/texas_holdem": "rlcard",
    "classic/tictactoe": "pygame",
    "mpe": "pygame",
    "sisl": "pygame",
    "sisl/multiwalker": "Box2D",
}
"""By the beginning of a name, the module that PettingZoo imports for it and does not bring by itself."""
_OURS = ("agents_leave",)
_VERSIONED = re.compile(r"\w+_v\d+")


def pettingzoo_source(
    env_id: str,
    num_envs: int,
    max_episode_steps: int | None,
    settings: Mapping[str, Any],
    *,
    structured: bool = False,
) -> WrappedSource:
    """Return an environment as `pettingzoo/mpe/simple_spread_v3` or `pettingzoo/my_module:my_function`.

    Its settings are those of its constructor, or of the function. `agents_leave = True` shows masks of choices, so that
    agents may leave before the episode's end. With `structured`, observations are leaves.

    Raises:
        ValueError: PettingZoo or what the environment needs is not installed, or no such environment or setting.
    """
    made_by, offered = _maker(env_id), pettingzoo_types(env_id)
    unknown = sorted(set(settings) - set(offered))
    if unknown:
        near = [match for name in unknown for match in get_close_matches(name, offered, n=1)]
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f"{env_id} has no setting {', '.join(map(repr, unknown))}; its settings: {', '.join(offered)}{hint}"
        )
    if not isinstance(settings.get("agents_leave", False), bool):
        raise ValueError(  # noqa: TRY004  (as all mistakes in settings)
            f"{env_id}: agents_leave is {settings['agents_leave']!r}, expected true or false"
        )
    values = {name: value for name, value in settings.items() if name not in _OURS}

    def make() -> tuple[TeamEnv, Mapping[str, Any], Mapping[str, Any]]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of constructors that all versions have
                env = made_by(**values)
        except ImportError as error:
            raise ValueError(f"{env_id} needs more than PettingZoo: {error}") from error
        except Exception as error:
            raise ValueError(f"{env_id} can't be made: {type(error).__name__}: {error}") from error
        if not getattr(env, "possible_agents", None):
            raise ValueError(f"{env_id} is a {type(env).__name__}, expected PettingZoo's ParallelEnv or AECEnv")
        observations, actions = (
            {name: space_of(name) for name in env.possible_agents}
            for space_of in (env.observation_space, env.action_space)
        )
        team = TurnTeam(env) if hasattr(type(env), "agent_iter") else ParallelTeam(env)
        return team, observations, actions

    limit = max_episode_steps if max_episode_steps != -1 else None

    def build(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        masked = bool(settings.get("agents_leave", False))
        return TeamVector(env_id, make, num_envs, mode, limit=limit, masked=masked, structured=structured)

    return WrappedSource(env_id, build, limit, None, outlives_seeds=True, several_agents=True)


def pettingzoo_ids() -> list[str]:
    """Return the ids of all environments whose packages are installed; the error of another names what it lacks.

    Raises:
        ValueError: PettingZoo is not installed.
    """
    if importlib.util.find_spec("pettingzoo") is None:
        raise ValueError(f"{PREFIX}: PettingZoo is not installed: pip install 'penstock-rl[pettingzoo]'")
    names = [f"{family}/{name}" for family in _PACKAGES for name in _names(family)]
    lacking = tuple(beginning for beginning, module in _NEEDED.items() if not _is_there(module))
    return [f"{PREFIX}{name}" for name in names if not name.startswith(lacking)]


def pettingzoo_types(env_id: str) -> dict[str, type | None]:
    """Return the names of an environment's settings; their types are the environment's to check.

    Raises:
        ValueError: As `pettingzoo_source`.
    """
    made = _maker(env_id) if _is_own(env_id) else getattr(_module(env_id), "raw_env", None)
    names = [] if made is None else [*inspect.signature(made).parameters.values()]
    plain = [one.name for one in names if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return {**dict.fromkeys(name for name in plain if name != "render_mode"), "agents_leave": bool}


def _names(family: str) -> list[str]:
    spec = importlib.util.find_spec(_PACKAGES[family]) if _is_there(_PACKAGES[family]) else None
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(next(iter(spec.submodule_search_locations)))
    return sorted(path.stem for path in folder.glob("*_v*.py") if _VERSIONED.fullmatch(path.stem))


def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package.partition(".")[0]) is not None


def _is_own(env_id: str) -> bool:
    return ":" in env_id


def _maker(env_id: str) -> Any:
    """Return the function or class that makes the environment."""
    if not _is_own(env_id):
        module = _module(env_id)
        return getattr(module, "parallel_env", None) or module.env
    name, _, function = env_id.removeprefix(PREFIX).partition(":")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"{env_id}: the module {name!r} can't be imported ({error}); install it, or name its folder in PYTHONPATH, "
            f"here and where the workers start"
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise ValueError(  # noqa: TRY004  (as all mistakes in ids)
            f"{env_id}: {name} has no function or class {function!r} that makes an environment"
        )
    return found


def _module(env_id: str) -> Any:
    family, _, name = env_id.removeprefix(PREFIX).partition("/")
    if family not in _PACKAGES:
        every = (f"{one}/{other}" for one in _PACKAGES for other in _names(one))
        near = [f"{PREFIX}{other}" for other in similar_ids(env_id.removeprefix(PREFIX), every)]
        raise ValueError(
            f"{env_id}: expected {PREFIX}<family>/<name>, with a family of {', '.join(_PACKAGES)}, or "
            f"{PREFIX}<module>:<function> for one of yours{where_to_look(near, PREFIX)}"
        )
    if not _is_there(_PACKAGES[family]):
        package = _PACKAGES[family].partition(".")[0]
        raise ValueError(f"{env_id} needs {package}, which is not installed: pip install 'penstock-rl[pettingzoo]'")
    names = _names(family)
    if name not in names:
        beginning = f"{PREFIX}{family}/"
        near = [f"{beginning}{other}" for other in similar_ids(name, names)]
        raise ValueError(f"PettingZoo has no environment {env_id!r}{where_to_look(near, beginning)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what those packages import
            return importlib.import_module(f"{_PACKAGES[family]}.{name}")
    except ImportError as error:
        raise ValueError(f"{env_id} needs more than PettingZoo: {error}") from error
