"""Lists the ids that `make` takes here, by the library that steps them: is it installed, and what installs it.

A library is imported only where its ids can't be known otherwise, and none that is missing is an error.
"""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

import gymnasium

from penstock.native import _core
from penstock.native.adapters.atari import PREFIX as ATARI
from penstock.native.adapters.atari import atari_ids
from penstock.native.adapters.dm_control import dm_control_ids
from penstock.native.adapters.envpool import envpool_ids
from penstock.native.adapters.gymnasium import PREFIX as GYMNASIUM
from penstock.native.adapters.minatar import PREFIX as MINATAR
from penstock.native.adapters.minatar import minatar_ids
from penstock.native.adapters.minigrid import minigrid_ids
from penstock.native.pool import control_suite, mujoco_library, task_libraries
from penstock.native.pool.spaces import VECTOR_ENTRY_POINT
from penstock.native.registry.entry_points import load_installed, package_behind
from penstock.native.registry.wrapped import named_family
from penstock.native.simulators.brax import brax_ids
from penstock.native.simulators.playground import playground_ids
from penstock.native.simulators.warp import warp_ids
from penstock.native.teams.pettingzoo import pettingzoo_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gymnasium.envs.registration import EnvSpec

Restored = Literal["state", "replay"]
"""`state`: an interrupted run goes on from the saved state. `replay`: a stage begins new episodes, and its actions are
repeated."""


@dataclass(frozen=True, slots=True)
class Family:
    """Environments that one library steps."""

    name: str
    ids: tuple[str, ...]
    """Those that can be made here, sorted; none where the family is not installed."""
    installed: bool
    install: str | None
    """The command that installs what it needs; None if Penstock itself brings it."""
    restored: Restored
    note: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the family as plain data."""
        return asdict(self)


def families(pattern: str = "") -> tuple[Family, ...]:
    """Return the families with the ids that match a pattern; every family without one.

    Args:
        pattern: part of an id, or with `*`, `?` or `[` all of it, as in a file name; capitals do not matter.
    """
    found = _all()
    if not pattern:
        return found
    chosen = [
        Family(one.name, ids, one.installed, one.install, one.restored, one.note)
        for one in found
        if (ids := tuple(name for name in one.ids if _matches(name, pattern)))
    ]
    return tuple(chosen)


def packages_of(environment_id: str) -> tuple[str, ...]:
    """Return the names of the packages besides Penstock on whose code and files an environment's episodes depend.

    One that is not installed may be among them. No package is imported but those that bring environments in C++.
    """
    if environment_id in mujoco_library.IDS:
        return "gymnasium", "mujoco"
    if environment_id in control_suite.IDS:
        return "dm-control", "mujoco"
    named = named_family(environment_id)
    if named is not None and named.prefix != GYMNASIUM:
        return named.packages
    if named is None:
        if environment_id not in _core.environment_ids():
            load_installed()
        if environment_id in _core.environment_ids():
            package = package_behind(environment_id)
            return () if package is None else (package,)
    name = environment_id.removeprefix(GYMNASIUM)
    module, colon, _ = name.rpartition(":")
    spec = gymnasium.registry.get(name)
    if spec is None and not colon:
        return ()
    needed = module.partition(".")[0] if spec is None else _needs(spec)
    return ("gymnasium", needed) if needed else ("gymnasium",)


def extra(name: str) -> str:
    """Return the command that installs an extra of this package."""
    return f"pip install 'penstock-rl[{name}]'"


_IN_RUNS = "in runs also Floorplan-v0, and the environments of a header (environment.header)"
_BOX2D_IDS = {"LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3"}
_BOX2D = "penstock-box2d: LunarLander-v3 and others stepped by Penstock, built from the repository"
_SUITE = "dm_control's suite on MuJoCo 4, stepped by Penstock"
_BEHIND_SOCKETS = "socket/<name> with environment.address: the environment of a server, such as `penstock serve-env`"
_INSTALL_BOX2D = "pip install --no-build-isolation native/packages/box2d"
_LISTED_ELSEWHERE = {"minatar", "minigrid"}
"""Packages whose ids in Gymnasium's registry are another family's."""


def _all() -> tuple[Family, ...]:
    load_installed()
    mujoco, suite = mujoco_library.available(), control_suite.available()
    own = {*_core.environment_ids()} - task_libraries.IDS
    # another package, or a header, may have brought environments of the same ids
    box2d = own & _BOX2D_IDS if _is_installed("penstock_box2d") else set[str]()
    return (
        Family("Penstock", tuple(sorted(own - box2d)), installed=True, install=None, restored="state", note=_IN_RUNS),
        Family("MuJoCo", mujoco_library.IDS if mujoco else (), mujoco, extra("mujoco"), "state"),
        Family("Control suite", control_suite.IDS if suite else (), suite, extra("mujoco,dm"), "state", _SUITE),
        Family("Box2D", tuple(sorted(box2d)), bool(box2d), _INSTALL_BOX2D, "state", _BOX2D),
        _wrapped("Atari", "ale_py", "atari", atari_ids),
        _wrapped("MinAtar", "minatar", "minatar", minatar_ids),
        _wrapped("MiniGrid", "minigrid", "minigrid", minigrid_ids, "observes the view, without the mission's words"),
        _wrapped(
            "EnvPool", "envpool", "envpool", envpool_ids, "those of several players are refused; Procgen needs Qt 5"
        ),
        _wrapped(
            "dm_control",
            "dm_control",
            "dm-control",
            dm_control_ids,
            "needs MuJoCo 3; dmc/ and EnvPool have the same tasks",
        ),
        _wrapped(
            "PettingZoo", "pettingzoo", "pettingzoo", pettingzoo_ids, "several agents; some need packages of their own"
        ),
        _wrapped("MJX", "mujoco_playground", "mjx", playground_ids, "MuJoCo Playground's control suite", "state"),
        _wrapped("Warp", "mujoco_warp", "warp", warp_ids, "on Warp's CPU device, slowly: for trying", "state"),
        _wrapped("Brax", "brax", "brax", brax_ids, "no longer maintained by its authors: prefer MJX", "state"),
        Family("Socket", (), installed=True, install=None, restored="replay", note=_BEHIND_SOCKETS),
        *_of_gymnasium({*own, *task_libraries.IDS}),
    )


def _wrapped(
    name: str,
    module: str,
    extra_name: str,
    ids: Callable[[], Iterable[str]],
    note: str = "",
    restored: Restored = "replay",
) -> Family:
    """Return a family that one package brings; `ids` imports it, and raises ValueError where that fails."""
    there, listed = _is_installed(module), tuple[str, ...]()
    if there:
        try:
            listed = tuple(sorted(ids()))
        except ValueError as error:
            there, note = False, str(error)
    return Family(name, listed, there, extra(extra_name), restored, note)


def _of_gymnasium(native: set[str]) -> list[Family]:
    """Return Gymnasium's registry by what its environments need; ids that Penstock steps itself have the prefix."""
    groups: dict[str, list[str]] = {"": [], "mujoco": [], "box2d": [], "jax": []}
    for name, spec in sorted(gymnasium.registry.items()):
        if spec.vector_entry_point == VECTOR_ENTRY_POINT or name.startswith((ATARI, MINATAR)):
            continue
        needs = _needs(spec)
        if needs is not None:
            # only the listing has imported the package: `make` does it where the id names it
            prefix = GYMNASIUM if name in native else "" if needs in ("", *_NEEDS.values()) else f"{needs}:"
            groups.setdefault(needs, []).append(f"{prefix}{name}")
    return [
        _group("Gymnasium", groups.pop(""), (), "", "other packages' ids too, as module:Id-v0"),
        _group("Gymnasium, MuJoCo", groups.pop("mujoco"), ("mujoco", "imageio"), "gymnasium[mujoco]"),
        _group("Gymnasium, Box2D", groups.pop("box2d"), ("Box2D", "pygame"), "gymnasium[box2d]"),
        _group("Gymnasium, JAX", groups.pop("jax"), ("jax",), "gymnasium[jax]"),
        *(_group(f"Gymnasium, {package}", ids, (package,), "") for package, ids in groups.items()),
    ]


def _group(name: str, ids: list[str], modules: tuple[str, ...], extra_name: str, note: str = "") -> Family:
    there = all(map(_is_installed, modules))
    install = f"pip install '{extra_name}'" if extra_name else None
    return Family(name, tuple(sorted(ids)) if there else (), there, install, "replay", note)


_NEEDS = {"mujoco": "mujoco", "box2d": "box2d", "phys2d": "jax", "tabular": "jax"}
"""Packages of `gymnasium.envs` whose environments need more than Gymnasium, each with the extra that brings it."""


def _needs(spec: EnvSpec) -> str | None:
    """Return what an environment needs besides Gymnasium: nothing, an extra of it, or a package.

    None says that the environment can't be made at all, or that another family lists it.
    """
    entry = spec.entry_point if spec.entry_point is not None else spec.vector_entry_point
    if callable(entry):  # an entry of Gymnasium's that is a function says where the environment has moved
        return None if getattr(entry, "__module__", "").startswith("gymnasium.") else ""
    module = str(entry).partition(":")[0]
    package = module.partition(".")[0]
    if package == "gymnasium":
        return _NEEDS.get(module.split(".")[2], "") if module.startswith("gymnasium.envs.") else ""
    return package if package not in _LISTED_ELSEWHERE and _is_installed(package) else None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # sys.modules says None: the import is forbidden
        return False


def _matches(name: str, pattern: str) -> bool:
    name, pattern = name.lower(), pattern.lower()
    return fnmatchcase(name, pattern) if any(mark in pattern for mark in "*?[") else pattern in name
