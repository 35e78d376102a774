"""The base classes of algorithms' settings, and the registry of the algorithms that the settings belong to.

The settings of an algorithm are its hyper-parameters, declared here alone: the algorithm holds an instance of its
settings class. Nothing here imports torch, so the registry names classes and imports nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic import Field

from penstock.storage.errors import ConfigError
from penstock.tasks.settings import Settings
from penstock.tasks.setup.config.hyperparameters import (
    Cells,
    Channels,
    EncoderFeatures,
    EncoderNetwork,
    Hidden,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.native import EnvironmentSpec


MOST_COUNTED_UPDATES = 2**24
"""The optimizer steps that Adam's counter distinguishes: it is a float32, which the next one leaves as it is."""
_KINDS = {"discrete": "discrete actions", "box": "vectors as actions", "structured": "structured actions"}


class AlgorithmSettings(Settings):
    """The base class of every algorithm's settings."""

    row_columns: ClassVar[tuple[str, ...]] = ("action",)
    """Names of the columns that the algorithm always adds to a shard."""
    omitted_when_default: ClassVar[tuple[str, ...]] = ()
    """Settings that were added later: at their defaults the identity omits them, and those of its base classes, for
    older runs."""

    several_agents: ClassVar[bool | None] = False
    """True if the algorithm requires several agents with a reward each, False if it requires one reward, None if it
    supports both, by `EnvironmentSpec.agents`."""

    action_kinds: ClassVar[tuple[str, ...]] = ("discrete", "box", "structured")
    """The kinds of actions that it supports: choices, vectors, vectors of choices and numbers; the first names it."""

    takes_any_action: ClassVar[str] = "ppo"
    """An algorithm that learns from the same rows, whatever the actions are."""

    learns_from_window: ClassVar[bool] = False
    """True if the algorithm learns from rows of many rounds; for a custom algorithm, `custom_probe` determines it."""

    name: str

    def __hash__(self) -> int:
        """Hash the values, of which some are tables."""
        return hash((type(self), self.model_dump_json()))

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns that the algorithm adds to a shard with these settings."""
        return self.row_columns

    @property
    def row_steps(self) -> int:
        """Return the steps of an environment in a training row."""
        return 1

    @property
    def parts_agents(self) -> bool:
        """Return whether every loss trains parameters of one agent, which no other agent's loss reads."""
        return False

    def identity(self) -> Mapping[str, object]:
        """Return the settings that are part of a run's identity."""
        later = {name for kind in type(self).__mro__ for name in vars(kind).get("omitted_when_default", ())}
        unset = {name for name in later if getattr(self, name) == type(self).model_fields[name].default}
        return self.model_dump(mode="json", exclude=unset)

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse an environment, as its pool describes it, that the algorithm can't learn from.

        Raises:
            ConfigError: names the reason, and an algorithm that fits.
        """
        agents = environment["agents"]
        if self.several_agents not in (None, bool(agents)):
            has, choose = (
                (f"{agents} agents with a reward each", "mappo or ippo, or an environment without an agent axis")
                if agents
                else ("one reward and no agent axis", "ppo or impala, or an environment with an agent axis")
            )
            raise ConfigError(
                f"environment: {environment['id']} has {has}, which {self.name} can't learn from; choose {choose}"
            )
        kind = environment["action"]["kind"]
        if kind == "box" and len(environment["action"]["shape"]) == bool(agents):
            raise ConfigError(
                f"environment: {environment['id']} takes a single number, a Box of shape (), expected a vector; name "
                f"an id whose entry point makes one of it (gymnasium.wrappers.TransformAction)"
            )
        if kind in self.action_kinds:
            return
        remedy = f"choose another algorithm, such as {self.takes_any_action}"
        if kind == "structured":
            needed = "a Discrete" if self.action_kinds[0] == "discrete" else "a Box of floats"
            remedy = (
                f"choose ppo, impala, behaviour_cloning or iql, or name an id whose entry point makes {needed} of them "
                f"(gymnasium.wrappers.TransformAction)"
            )
        raise ConfigError(
            f"algorithm.name = '{self.name}': it needs {_KINDS[self.action_kinds[0]]}, and {environment['id']} takes "
            f"{_KINDS[kind]}; {remedy}"
        )

    def check_round(self, rows: int) -> None:
        """Refuse settings that do not fit a round of so many rows.

        Raises:
            ValueError: names the setting and its bound.
        """


SettingsT = TypeVar("SettingsT", bound=AlgorithmSettings)

_implementations: dict[type[AlgorithmSettings], str] = {}


def implemented_by(name: str) -> Callable[[type[SettingsT]], type[SettingsT]]:
    """Register a settings class for the algorithm `module:Class`, made as `Class(settings, environment)`."""

    def register(kind: type[SettingsT]) -> type[SettingsT]:
        _implementations[kind] = name
        return kind

    return register


def implementation_of(kind: type[AlgorithmSettings]) -> str:
    """Return the `module:Class` that a settings class is registered for."""
    return _implementations[kind]


def check_row_steps(row_steps: int, round_steps: int) -> None:
    """Refuse training rows of which a round is no whole number; raises as `check_round`."""
    if round_steps % row_steps:
        raise ValueError(
            f"algorithm.sequence_steps = {row_steps}: schedule.round_steps = {round_steps} is not a multiple of it; "
            f"choose a divisor"
        )


def check_burn_in(network: str, burn_in_steps: int, sequence_steps: int) -> None:
    """Refuse a burn-in without a memory, or one that is longer than a sequence; raises as `check_round`."""
    if network != "recurrent" and burn_in_steps:
        raise ValueError(
            f"algorithm.burn_in_steps = {burn_in_steps}: network = '{network}' has no memory to burn in, "
            f"expected network = 'recurrent'; leave it out"
        )
    if burn_in_steps > sequence_steps:
        raise ValueError(
            f"algorithm.burn_in_steps = {burn_in_steps} is more than algorithm.sequence_steps = "
            f"{sequence_steps}, expected at most that many; raise sequence_steps"
        )


def check_minibatches(minibatches: int, rows: int, row_steps: int = 1) -> None:
    """Refuse more minibatches than a round has rows; raises as `check_round`."""
    if minibatches > rows:
        raise ValueError(
            f"algorithm.minibatches = {minibatches}, but a round has only {rows} rows (environment.num_envs x "
            f"schedule.round_steps{' / algorithm.sequence_steps' if row_steps > 1 else ''})"
        )


def check_entropy_weight(final: float | None, anneal_rounds: int) -> None:
    """Refuse a final weight of the entropy bonus that no round reaches; raises as `check_round`."""
    if final is not None and not anneal_rounds:
        raise ValueError(
            f"algorithm.final_entropy_weight = {final}, but algorithm.anneal_rounds is 0, so the weight would never "
            f"change; choose the number of rounds, or leave final_entropy_weight out"
        )


def check_schedule(anneal_rounds: int, round_updates: int) -> None:
    """Refuse schedules that end after more optimizer steps than are counted; raises as `check_round`."""
    updates = anneal_rounds * round_updates
    if updates > MOST_COUNTED_UPDATES:
        raise ValueError(
            f"algorithm.anneal_rounds = {anneal_rounds} are {updates} optimizer steps, but at most "
            f"{MOST_COUNTED_UPDATES} are counted, so the learning rate would not reach its last value; choose at most "
            f"{MOST_COUNTED_UPDATES // round_updates} rounds"
        )


def check_window(window_rows: int, warm_up_rows: int, rows: int) -> None:
    """Refuse a window that is smaller than a round or than the warm-up; raises as `check_round`."""
    if window_rows < rows:
        raise ValueError(
            f"algorithm.window_rows = {window_rows}, but a round alone has {rows} rows (environment.num_envs x "
            f"schedule.round_steps)"
        )
    held = window_rows // rows * rows
    if warm_up_rows > held:
        raise ValueError(
            f"algorithm.warm_up_rows = {warm_up_rows}, but the window never has more than {held} rows, so learning "
            f"would never begin; the window holds whole rounds of {rows} rows, up to algorithm.window_rows = "
            f"{window_rows}"
        )


def check_bounds(
    setting: str, environment: EnvironmentSpec, otherwise: str = "leave it out", *, scales: bool = True
) -> None:
    """Refuse a setting that brings actions within bounds where there are none.

    Args:
        setting: as the user gives it, with its value.
        environment: as its pool describes it.
        otherwise: what to do where vectors have no bounds.
        scales: whether the distance between bounds is computed, in float32.

    Raises:
        ConfigError: names the setting, what the environment takes, and a remedy.
    """
    action, name = environment["action"], f"{setting}: {environment['id']}"
    if action["kind"] != "box":
        taken = "choices" if action["kind"] == "discrete" else "structured actions, which it always gets within bounds"
        raise ConfigError(f"{name} takes {taken}, expected vectors within bounds; leave it out")
    low, high = (np.ravel(np.asarray(action[side], dtype=np.float32)) for side in ("low", "high"))
    if not np.isfinite([*low, *high]).all():
        raise ConfigError(f"{name} takes vectors without bounds, expected a bound on both sides; {otherwise}")
    if fixed := np.flatnonzero(low >= high).tolist():
        raise ConfigError(
            f"{name} takes vectors whose numbers {fixed} have no range: the lower bound is not below the upper one; "
            f"{otherwise}, or leave such numbers out of the actions"
        )
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(high - low).all()
    if scales and not is_finite:
        raise ConfigError(
            f"{name} takes vectors between bounds as far apart as {low.min():g} and {high.max():g}, expected a "
            f"distance that is a float32 number; {otherwise}"
        )


_SMALLEST_PIXELS = 36
"""The network 'nature' takes no smaller images."""
_LEAST_SIDE = 16
"""An axis that alone is shorter is an image's channels; boards, and what has many planes, may have two short ones."""
_SMALLEST_CELLS = {"small": 3, "lines": 4}
"""Networks of grids of cells, and the smallest side of a grid that each takes."""
_MOST_CELLS = 400
"""The network 'lines' takes no larger grids."""
_IMAGE_DIMENSIONS = 3
_CONVOLUTIONS = ("nature", "residual", *_SMALLEST_CELLS)


AnyNetwork: TypeAlias = Annotated[
    Literal["mlp", "nature", "residual", "small", "lines", "leaves", "recurrent", "floorplan"],
    Field(
        description="Encoder before the hidden layers: none (mlp), convolutions for images (nature, residual), for "
        "grids of cells (small, or lines where lines of four count) or for the images of a structured observation "
        "(leaves), a memory (recurrent), or maps and messages over a netlist (floorplan)."
    ),
]
AnyFeatures: TypeAlias = Annotated[
    int,
    Field(
        ge=1,
        description="Features of the encoder: of the convolutions, of the memory, or (floorplan) of a macro and of a "
        "cell; a plain mlp has none.",
    ),
]


class NetworkSettings(AlgorithmSettings):
    """Settings of the network between observation and outputs."""

    omitted_when_default: ClassVar[tuple[str, ...]] = ("network", "features", "channels", "cells", "sequence_steps")

    network: AnyNetwork = "mlp"
    features: AnyFeatures = 256
    channels: Channels = None
    sequence_steps: int = Field(
        16,
        ge=1,
        description="Steps of a recurrent network's training sequence; a round is a whole number of sequences.",
    )

    cells: Cells = Field({})
    hidden: Hidden = (64, 64)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the algorithm's columns, and `memory` if the network is recurrent."""
        return (*self.row_columns, "memory") if self.network == "recurrent" else self.row_columns

    @property
    def row_steps(self) -> int:
        """Return the steps of an environment in a training row."""
        return self.sequence_steps if self.network == "recurrent" else 1

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse observations that the network does not support."""
        super().check_environment(environment)
        check_netlist(self.network, environment)
        check_images(self.network, environment, self.channels, self.cells)


def check_netlist(network: str, environment: EnvironmentSpec) -> None:
    """Refuse a network over netlists where the environment has none; raises as `check_images`."""
    if network == "floorplan" and "edges" not in environment.get("facts", {}):
        raise ConfigError(
            f"algorithm.network = 'floorplan': {environment['id']} has no netlist, expected Floorplan-v0; choose mlp"
        )


def check_images(
    network: str,
    environment: EnvironmentSpec,
    channels: str | None = None,
    cells: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Refuse convolutions over observations that are no images or grids, or too small, and leaves that there are not.

    An axis of channels is refused where the network has no images of one.

    Raises:
        ConfigError: names what is observed and what was expected.
    """
    shape, leaves = observed_shape(environment), environment["observation"].get("leaves")
    if network == "leaves" and not leaves:
        raise ConfigError(
            f"algorithm.network = 'leaves': {environment['id']} observes {shape}, whose leaves are not known, expected "
            f"Tuple or Dict observations with environment.structured = true; set that, or choose mlp"
        )
    if network == "leaves":
        check_cells(cells or {}, environment)
    if network not in _CONVOLUTIONS:
        if channels:
            raise ConfigError(
                f"algorithm.channels = '{channels}': network = '{network}' has no such axis, expected one of "
                f"{', '.join(_CONVOLUTIONS)}; leave it out"
            )
        return
    smallest = {"nature": _SMALLEST_PIXELS, **_SMALLEST_CELLS}.get(network, 1)
    usual = ("last",) if network in _SMALLEST_CELLS else ("first", "last") if network == "nature" else ("first",)
    orders = (channels,) if channels else usual
    sizes = {"first": shape[1:], "last": shape[:-1]}
    size = max((sizes[order] for order in orders), key=lambda sides: min(sides, default=0))
    large = network == "lines" and math.prod(size) > _MOST_CELLS
    if len(shape) != _IMAGE_DIMENSIONS or min(size) < smallest or large:
        axes = {"first": "[channels, height, width]", "last": "[height, width, channels]"}
        kind = f"{'grids' if network in _SMALLEST_CELLS else 'images'} {' or '.join(axes[order] for order in orders)}"
        least = f" of {smallest} x {smallest} at least" if smallest > 1 else ""
        least += f" and {_MOST_CELLS} cells at most" if network == "lines" else ""
        advice = f"choose {'leaves' if leaves else 'mlp'}"
        raise ConfigError(
            f"algorithm.network = '{network}': {environment['id']} observes {shape}, expected {kind}{least}; {advice}"
        )


def check_cells(cells: Mapping[str, tuple[int, ...]], environment: EnvironmentSpec) -> None:
    """Refuse grids of cells that are no such leaves, or have another number of channels or categories.

    Raises:
        ConfigError: names the leaf, what was found and what was expected.
    """
    leaves = {leaf["name"]: leaf for leaf in environment["observation"].get("leaves", ())}
    agents = environment["agents"]
    for name, sizes in cells.items():
        found = f"algorithm.cells.{name} = {list(sizes)}: {environment['id']} has"
        if name not in leaves:
            raise ConfigError(f"{found} no leaf '{name}', expected one of {', '.join(leaves)}; correct the name")
        leaf = leaves[name]
        shape = leaf["shape"][1:] if agents else leaf["shape"]
        found += f" the leaf '{name}' of {leaf['dtype']} {list(shape)}"
        smallest = _SMALLEST_CELLS["small"]
        is_grid = len(shape) in (2, _IMAGE_DIMENSIONS) and min(shape[:2]) >= smallest
        if not is_grid or np.dtype(leaf["dtype"]).kind not in "iu":
            raise ConfigError(
                f"{found}, expected whole numbers [height, width] or [height, width, channels], of {smallest} x "
                f"{smallest} cells at least; leave it out"
            )
        channels = math.prod(shape[2:])
        if len(sizes) != channels:
            raise ConfigError(
                f"{found}, expected the number of categories of each of its {channels} channel(s), the last axis"
            )
        if leaf["kind"] == "choice" and tuple(leaf["sizes"]) != sizes * (len(leaf["sizes"]) // channels):
            own = [sorted({*leaf["sizes"][channel::channels]}) for channel in range(channels)]
            raise ConfigError(f"{found}, expected the choices that its channels have in each cell, {own}")


def misread_images(settings: AlgorithmSettings, environment: EnvironmentSpec) -> str:
    """Say why a network would take another axis of images for their channels; '' if it would not.

    A stored run goes on with its network; a new one is refused.
    """
    shape = observed_shape(environment)
    if not isinstance(settings, (NetworkSettings, EncoderSettings)) or settings.channels:
        return ""
    if len(shape) != _IMAGE_DIMENSIONS:
        return ""
    (first, *size), (*size_before, last), network = shape, shape, settings.network
    found = f"algorithm.network = '{network}': {environment['id']} observes {shape}, images with their channels"
    if network == "residual" and last < _LEAST_SIDE <= min(size_before):
        return f"{found} last, expected [channels, height, width]; set algorithm.channels = 'last'"
    if network in _SMALLEST_CELLS and first < _LEAST_SIDE <= min(size):
        other = "nature or residual" if min(size) >= _SMALLEST_PIXELS else "residual"
        remedy = f"set algorithm.channels = 'first', or choose {other}, which divides pixels by 255"
        return f"{found} first, expected grids [height, width, channels]; {remedy}"
    return ""


def check_pixels(network: str, *, normalized: bool) -> None:
    """Refuse normalised observations for networks that take images; raises as `check_round`."""
    if normalized and network in (*_CONVOLUTIONS, "leaves"):
        raise ValueError(
            f"algorithm.normalize_observation = true: network = '{network}' takes pixels as they are; leave it out"
        )


class EncoderSettings(AlgorithmSettings):
    """Settings of a network of which images may be the input."""

    perceptron_takes_images: ClassVar[bool] = False
    """True for an algorithm that had no other network once: its older runs on images continue."""
    omitted_when_default: ClassVar[tuple[str, ...]] = ("channels", "cells")

    network: Literal["mlp", "nature", "residual", "small", "lines", "leaves", "recurrent"] = Field(
        "mlp",
        description="Encoder before the hidden layers: none (mlp), convolutions for images (nature, residual), for "
        "grids of cells (small, or lines where lines of four count) or for the images of a structured observation "
        "(leaves), or a memory (recurrent).",
    )
    features: int = Field(
        256, ge=1, description="Features of the encoder: of the convolutions, or of the memory; a plain mlp has none."
    )
    channels: Channels = None
    cells: Cells = Field({})

    def check_environment(self, environment: EnvironmentSpec) -> None:
        """Refuse observations that the network does not support."""
        super().check_environment(environment)
        check_images(self.network, environment, self.channels, self.cells)
        is_flat = self.network in ("mlp", "recurrent")
        if is_flat and not self.perceptron_takes_images and observes_images(environment):
            raise ConfigError(
                f"algorithm.network = '{self.network}': {environment['id']} observes images "
                f"{observed_shape(environment)}, from whose pixels a network without convolutions learns next to "
                f"nothing; choose nature or residual"
            )


class EncodedSettings(EncoderSettings):
    """Settings of a network without a memory."""

    network: EncoderNetwork = "mlp"
    features: EncoderFeatures = 256


def observed_shape(environment: EnvironmentSpec) -> list[int]:
    """Return the shape of an observation without its mask."""
    observed = environment["observation"]
    return list(observed.get("behind_mask", observed["shape"]))


def observes_images(environment: EnvironmentSpec) -> bool:
    """Return whether observations are images of bytes; the boards of games are none."""
    shape = observed_shape(environment)
    is_image = len(shape) == _IMAGE_DIMENSIONS and sorted(shape)[1] >= _SMALLEST_PIXELS
    return is_image and environment["observation"]["dtype"] == "uint8"
