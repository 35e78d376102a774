"""Settings of the environment, of the blocks of macro placement, and of the other player of a game."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_serializer,
    model_validator,
)

from penstock.storage.digest import digest
from penstock.tasks.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET = "socket/"
"""Beginning of ids whose environments a server has."""

_OF_A_SERVER = ("address", "tls_certificate", "reply_seconds", "reconnect_seconds")

FLOORPLAN = "Floorplan-v0"
"""Id of the environment whose blocks the settings name."""


def _checked(value: Any) -> Any:
    """Return a value that JSON and TOML both have; a tuple as a list.

    Raises:
        ValueError: it is of another type, empty or not finite.
    """
    parts = value if isinstance(value, (list, tuple)) else [value]
    right = all(isinstance(part, (bool, int, float, str)) for part in parts) and len(parts) > 0
    if not right or any(isinstance(part, float) and not math.isfinite(part) for part in parts):
        raise ValueError(f"found {value!r}, expected a finite number, true, false, text, or a list of these")
    return list(value) if isinstance(value, (list, tuple)) else value


Single: TypeAlias = StrictBool | StrictInt | StrictFloat | StrictStr
EnvironmentValue: TypeAlias = Annotated[Single | list[Single], BeforeValidator(_checked)]
"""The value of an environment's setting. It keeps its type: 4 and 4.0 are two values, also in stored bytes."""


class BlockSettings(Settings):
    """The files of one block, by paths that are valid in every process that makes environments."""

    netlist: str = Field(
        "",
        description="Netlist (.pb.txt, also gzip); several are separated by commas; empty: a synthetic block.",
    )
    placement: str | None = Field(
        None,
        description="Placement (.plc) with canvas, grid, port positions and fixed macros.",
    )
    digest: str | None = Field(
        None,
        description="Digest of the files' bytes, stored when a run begins; files with another digest are refused.",
    )


def module_of_wrapper(name: str) -> str:
    """Return the module of a wrapper that is named as `module:Class` or `package.module.Class`."""
    module, colon, _ = name.partition(":")
    return module if colon else name.rpartition(".")[0]


class WrapperSettings(Settings):
    """A Gymnasium wrapper with arguments."""

    name: str = Field(description="Class as package.module.Class or module:Class.")
    settings: dict[str, EnvironmentValue] = Field(
        default_factory=dict,
        description="Keyword arguments of the class.",
    )


class EnvironmentSettings(Settings):
    """The environment, its number of copies, and their split into tiles."""

    id: str = Field("CartPole-v1", description="Id of a pool environment.")
    num_envs: int = Field(64, ge=1, le=1 << 30, description="Copies that act at once, in the whole run.")
    envs_per_tile: int = Field(
        64,
        ge=1,
        le=1 << 20,
        description="Copies in a tile: the unit of inference, of a shard and of stored environment state.",
    )
    max_episode_steps: int | None = Field(None, ge=1, description="Time limit; empty: the environment's default.")
    header: str | None = Field(
        None,
        description="C++ header that has the environment, as docs/environments.md describes; id may be left out where "
        "it has one. It needs a C++ compiler on every machine that acts.",
    )
    header_text: str | None = Field(
        None,
        max_length=1 << 20,
        description="Text of the header, stored when a run begins and compiled from then on.",
    )
    address: str | None = Field(
        None,
        description="Address of the server whose environments an id such as socket/CartPole-v1 names: host:port or "
        "unix:/path; several are separated by commas. The variable PENSTOCK_ENVIRONMENT_ADDRESS replaces it.",
    )
    tls_certificate: str | None = Field(
        None,
        description="Path, on every machine that acts, of a PEM file with the certificate of the server at address or "
        "of its authority: connections are then encrypted, and no other server is taken. Empty: they are plain.",
    )
    reply_seconds: float = Field(
        60.0, gt=0, description="Longest wait for an answer of the server at address, before it counts as lost."
    )
    reconnect_seconds: float = Field(
        30.0,
        gt=0,
        description="Time for which connecting to address is tried again after a loss; at the start at most 10 s.",
    )
    settings: dict[str, EnvironmentValue] = Field(
        default_factory=dict,
        description="Settings of the environment, such as gravity, each of the type that it has there. A list is one "
        "value for each environment, repeated as often as needed; where a library steps the environment, one argument.",
    )
    model_digest: str | None = Field(
        None,
        description="Digest of the MuJoCo model that settings.xml_file names and of the files that it includes, stored "
        "when a run begins; files with another digest are refused.",
    )
    blocks: tuple[BlockSettings, ...] = Field(
        (),
        description=f"Blocks of {FLOORPLAN}, each with netlist and placement; environment i has block i modulo their "
        f"number. Empty: a synthetic block.",
    )

    structured: bool = Field(
        False,
        description="Keep the parts of Discrete, Tuple and Dict observations of other libraries' environments apart: a "
        "column each in shards, and an encoder each in the network 'leaves'.",
    )

    action_mask: Literal["info", "observation"] | None = Field(
        None,
        description="Where an environment of another library gives the mask of allowed choices, under the key "
        "`action_mask`: in its infos, or as a part of its Dict observations; empty: nowhere.",
    )

    wrappers: tuple[str | WrapperSettings, ...] = Field(
        (),
        description="Gymnasium wrappers around each environment that Gymnasium steps, the innermost first: names such "
        "as gymnasium.wrappers.TimeAwareObservation or module:Class, or tables with name and settings.",
    )

    @field_validator("wrappers", mode="before")
    @classmethod
    def _several(cls, wrappers: Any) -> Any:
        """Take one wrapper as a list of one, as the command line gives it."""
        return (wrappers,) if isinstance(wrappers, (str, dict)) else wrappers

    @field_validator("wrappers")
    @classmethod
    def _named(cls, wrappers: tuple[str | WrapperSettings, ...]) -> tuple[str | WrapperSettings, ...]:
        """Store one without arguments as its name, however it was written: the run's identity is then the same."""
        for one in wrappers:
            name = one if isinstance(one, str) else one.name
            module = module_of_wrapper(name)
            if not all(part.isidentifier() for part in (*module.split("."), name[len(module) + 1 :])):
                raise ValueError(
                    f"found '{name}', expected a class as package.module.Class or module:Class, such as "
                    f"gymnasium.wrappers.TimeAwareObservation"
                )
        return tuple(one if isinstance(one, str) or one.settings else one.name for one in wrappers)

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out wrappers, a model, a certificate and a server that there are not: `run.json` keeps its bytes."""
        values: dict[str, Any] = handler(self)
        for name in ("wrappers", "model_digest", "tls_certificate"):
            if not getattr(self, name):
                values.pop(name, None)
        if not self.id.startswith(SOCKET):
            for name in _OF_A_SERVER:
                values.pop(name, None)
        return values

    @model_validator(mode="after")
    def _whole_tiles(self) -> EnvironmentSettings:
        if self.num_envs % self.envs_per_tile:
            fewer = self.num_envs - self.num_envs % self.envs_per_tile
            more = fewer + self.envs_per_tile
            near, divisor = (f"{fewer} or {more}", "one that divides it") if fewer else (more, self.num_envs)
            raise ValueError(
                f"num_envs = {self.num_envs} is not a multiple of envs_per_tile = {self.envs_per_tile}; choose a "
                f"multiple, such as {near}, or give envs_per_tile as well: {divisor}"
            )
        given = [name for name in _OF_A_SERVER if getattr(self, name) != type(self).model_fields[name].default]
        if given and not self.id.startswith(SOCKET):
            raise ValueError(
                f"{given[0]} = {getattr(self, given[0])}: found id = '{self.id}', expected the environment of a "
                f"server, such as id = 'socket/CartPole-v1'; leave {given[0]} out, or name that"
            )
        if self.blocks and self.id != FLOORPLAN:
            raise ValueError(f"blocks: found {len(self.blocks)} for id = '{self.id}', expected id = '{FLOORPLAN}'")
        if self.blocks and self.envs_per_tile % len(self.blocks):
            raise ValueError(
                f"envs_per_tile = {self.envs_per_tile} is not a multiple of {len(self.blocks)} blocks; choose one, so "
                f"that every tile plays each block as often"
            )
        return self

    @property
    def label(self) -> str:
        """Return the id, or where a header need not name one, the header's file name."""
        given = self.header is None or "id" in self.model_fields_set
        return self.id if given else PurePath(str(self.header)).stem

    @property
    def tiles(self) -> int:
        """Return the number of tiles of the run."""
        return self.num_envs // self.envs_per_tile

    def identity(self) -> Mapping[str, object]:
        """Return the settings that are part of a run's identity: of a header its digest, whatever its path.

        Without blocks or a header, they are omitted, as in old runs, and so are `structured` and `action_mask` at their
        defaults. A server's address, certificate and time-outs are no part: no episode depends on them.
        """
        unset = {name for name in ("blocks", "structured", "action_mask") if not getattr(self, name)}
        found = self.model_dump(mode="json", exclude={"header", "header_text", *_OF_A_SERVER, *unset})
        return found if self.header_text is None else {**found, "header": digest(self.header_text.encode())}


class LeagueSettings(Settings):
    """The other player of a game of two: the environment's own, or versions of the policy that learns."""

    opponents: Literal["environment", "latest", "league"] = Field(
        "environment",
        description="The other player of a game of two: the environment's own, the latest committed version, or one "
        "drawn from a league of committed versions.",
    )
    size: int = Field(8, ge=1, le=64, description="Older versions in the league: the newest so many that were added.")
    add_every_stages: int = Field(1, ge=1, description="Stages between versions that are added to the league.")
    latest_probability: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Probability of the latest committed version; the others share the rest equally.",
    )
    opening_moves: int = Field(
        0,
        ge=0,
        le=64,
        description="Most moves at random, of both players, before the learner's first; each number is as likely.",
    )

    @model_validator(mode="after")
    def _has_a_league(self) -> Self:
        if self.opponents == "league":
            return self
        others = ("opening_moves",) if self.opponents == "environment" else ()
        for name in ("size", "add_every_stages", "latest_probability", *others):
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} = {value} has no effect with opponents = '{self.opponents}', expected opponents = "
                    f"'league'; set that, or leave {name} out"
                )
        return self

    @property
    def plays_itself(self) -> bool:
        """Return whether versions of the policy are the other player."""
        return self.opponents != "environment"

    def identity(self) -> Mapping[str, object]:
        """Return the settings that are part of a run's identity; openings are omitted without any, as in old runs."""
        return self.model_dump(mode="json", exclude=None if self.opening_moves else {"opening_moves"})
