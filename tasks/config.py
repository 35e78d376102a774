"""The typed settings of a training run: one model, filled by a preset file, the command line or Prefect's form.

Nothing here imports torch, so that the process that drives a run starts quickly. Field order is the form's order.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import Field, StrictBool, StringConstraints, Tag, ValidationError, model_validator

from storage.errors import ConfigError
from tasks.algorithm_settings.base import AlgorithmSettings
from tasks.algorithm_settings.dqn import DQNSettings
from tasks.algorithm_settings.impala import IMPALASettings
from tasks.algorithm_settings.ippo import IPPOSettings
from tasks.algorithm_settings.mappo import MAPPOSettings
from tasks.algorithm_settings.own import OWN, OwnSettings, by_name
from tasks.algorithm_settings.ppo import PPOSettings
from tasks.algorithm_settings.sac import SACSettings
from tasks.cluster_settings import ClusterSettings
from tasks.columns import ShardSettings
from tasks.floorplan_settings import FLOORPLAN, BlockSettings
from tasks.policies import AUTO, make_policy
from tasks.role_settings import RoleName, RoleSettings
from tasks.settings import Settings, at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.policies import DistributionPolicy

PRESETS_FOLDER = Path(__file__).resolve().parent / "presets"

MOVABLE = ("act_tasks", "env_tasks", "min_act_tasks", "min_env_tasks")
"""Of the placement, what may change when a run goes on."""

RunName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class EnvironmentSettings(Settings):
    """Which environment, how many copies, and how they are split into tiles."""

    id: str = Field("CartPole-v1", description="Id of a pool environment.", json_schema_extra=at(0))
    num_envs: int = Field(64, ge=1, description="Copies that act at once, in the whole run.", json_schema_extra=at(1))
    envs_per_tile: int = Field(
        64,
        ge=1,
        description="Copies in a tile: the unit of inference, of a shard and of stored environment state.",
        json_schema_extra=at(2),
    )
    max_episode_steps: int | None = Field(
        None, ge=1, description="Time limit; empty takes the environment's own.", json_schema_extra=at(3)
    )
    settings: dict[str, StrictBool | float] = Field(
        default_factory=dict, description="The environment's own settings, such as gravity.", json_schema_extra=at(4)
    )
    blocks: tuple[BlockSettings, ...] = Field(
        (),
        description=f"Of {FLOORPLAN}: what is placed, each with netlist and placement; environment i has block i "
        f"modulo their number. Empty takes a made-up block.",
        json_schema_extra=at(5),
    )

    @model_validator(mode="after")
    def _whole_tiles(self) -> EnvironmentSettings:
        if self.num_envs % self.envs_per_tile:
            raise ValueError(
                f"num_envs = {self.num_envs} is not a whole number of tiles of envs_per_tile = {self.envs_per_tile}; "
                f"choose a multiple"
            )
        if self.blocks and self.id != FLOORPLAN:
            raise ValueError(f"blocks: found {len(self.blocks)} for id = '{self.id}', expected id = '{FLOORPLAN}'")
        if self.blocks and self.envs_per_tile % len(self.blocks):
            raise ValueError(
                f"envs_per_tile = {self.envs_per_tile} is no multiple of {len(self.blocks)} blocks; choose one, so "
                f"that every tile plays each block as often"
            )
        return self

    @property
    def tiles(self) -> int:
        """Number of tiles of the run."""
        return self.num_envs // self.envs_per_tile

    def identity(self) -> dict[str, Any]:
        """What of it is part of a run's identity; blocks are left out where there are none, as in runs before them."""
        return self.model_dump(mode="json", exclude=set() if self.blocks else {"blocks"})


class ScheduleSettings(Settings):
    """How much is acted and learned, in which portions, and when it is enough."""

    round_steps: int = Field(64, ge=1, description="Steps of every environment in a round.", json_schema_extra=at(0))
    rounds_per_stage: int = Field(
        10,
        ge=1,
        description="Rounds in a stage; a stage ends with a commit, the resume point.",
        json_schema_extra=at(1),
    )
    max_stages: int = Field(20, ge=1, description="Stop after this many stages.", json_schema_extra=at(2))
    lag: int = Field(
        0,
        ge=0,
        le=8,
        description="Round r acts with version r - lag: 0 is synchronous, 1 overlaps.",
        json_schema_extra=at(3),
    )
    target_return: float | None = Field(
        None,
        description="Stop when the mean evaluation return reaches it; empty never stops early.",
        json_schema_extra=at(4),
    )
    evaluation_episodes: int = Field(
        100,
        ge=1,
        description="Episodes of each evaluation, on seeds that training never saw.",
        json_schema_extra=at(5),
    )
    evaluate_every_stages: int = Field(1, ge=1, description="Stages between evaluations.", json_schema_extra=at(6))


class PlacementSettings(Settings):
    """Where the fragments of the algorithm run."""

    policy: str = Field(
        "single_learner_coarse",
        description="Distribution policy; auto takes the one that is predicted to be the fastest here.",
        json_schema_extra=at(0),
    )
    act_tasks: int = Field(
        1,
        ge=1,
        description="Act tasks, under policies that have them; each owns whole tiles.",
        json_schema_extra=at(1),
    )
    env_tasks: int = Field(
        1,
        ge=1,
        description="Tasks that only step environments, under policies that have them; each owns whole tiles.",
        json_schema_extra=at(2),
    )
    learn_tasks: int = Field(
        1,
        ge=1,
        description="Learners, under policies that have several; each owns whole tiles and reduces gradients with the "
        "others.",
        json_schema_extra=at(3),
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where learning runs.", json_schema_extra=at(4))
    torch_threads: int = Field(1, ge=1, description="Torch's threads in a learn task.", json_schema_extra=at(5))
    gradient_block_rows: int = Field(
        4096,
        ge=1,
        description="Rows whose gradient is taken at once; blocks are summed in a fixed tree.",
        json_schema_extra=at(6),
    )
    quorum: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="Share of a round's shards that learning waits for; only 1.0 keeps the same-bytes promise.",
        json_schema_extra=at(7),
    )
    snapshot_dtype: Literal["float32", "bfloat16", "int8"] = Field(
        "float32",
        description="Weights that actors get: int8 and bfloat16 are a quarter and half of the bytes, and round.",
        json_schema_extra=at(8),
    )
    roles: dict[RoleName, RoleSettings] = Field(
        default_factory=dict,
        description="Roles of a policy of your own, by name; placement.policy is then its name.",
        json_schema_extra=at(9),
    )
    min_act_tasks: int | None = Field(
        None,
        ge=1,
        description="A stage begins with as few act tasks where there are no places for more; empty: with all.",
        json_schema_extra=at(10),
    )
    min_env_tasks: int | None = Field(
        None, ge=1, description="The same of tasks that only step environments.", json_schema_extra=at(11)
    )

    @model_validator(mode="after")
    def _fewest(self) -> PlacementSettings:
        for name in ("act_tasks", "env_tasks"):
            fewest, most = getattr(self, f"min_{name}"), getattr(self, name)
            if fewest is not None and fewest > most:
                raise ValueError(f"min_{name} = {fewest} is more than {name} = {most}; choose at most {most}")
        return self


class RunConfig(Settings):
    """What describes a run, whether it acts or learns from what others have stored. Its kinds follow from this."""

    name: RunName | None = Field(
        None, description="The run's name, a folder in the store; empty makes one up.", json_schema_extra=at(0)
    )
    seed: int = Field(1, ge=0, lt=2**32, description="Seed of everything random.", json_schema_extra=at(1))
    store: str = Field("runs", description="Folder or s3:// address that holds runs.", json_schema_extra=at(2))
    environment: EnvironmentSettings = Field(default_factory=EnvironmentSettings, json_schema_extra=at(3))
    algorithm: AlgorithmSettings
    schedule: ScheduleSettings = Field(default_factory=ScheduleSettings, json_schema_extra=at(5))
    placement: PlacementSettings = Field(default_factory=PlacementSettings, json_schema_extra=at(6))
    cluster: ClusterSettings = Field(default_factory=ClusterSettings, json_schema_extra=at(7))

    @property
    def acts(self) -> bool:
        """Whether the run has environments of its own; otherwise it learns from shards of other runs."""
        return True

    @property
    def policy(self) -> DistributionPolicy:
        """Who does what; ConfigError as `make_policy`."""
        return make_policy(self.placement)

    @property
    def waits_for_all(self) -> bool:
        """Whether a round is learned from all of its shards, and not from those that are there in time."""
        return self.placement.quorum == 1.0

    @property
    def shards_needed(self) -> int:
        """Shards of a round without which it is not learned from."""
        # 0.1 of 30 is 3, whatever a product of floats says.
        return max(1, math.ceil(self.placement.quorum * self.environment.tiles - 1e-9))

    @property
    def story(self) -> str:
        """What runs, in a few words."""
        return f"{self.environment.id}, {self.algorithm.name}"

    def identity(self) -> dict[str, Any]:
        """What determines the bytes of a run: not its name, its place, its number of processes or its last stage."""
        placement = {"policy", "torch_threads", "gradient_block_rows", "quorum"}
        if self.placement.snapshot_dtype != "float32":  # left out where it is: such runs keep the identity they had
            placement.add("snapshot_dtype")
        if self.policy.reduce != "local":  # who adds up which rows decides how sums are rounded
            placement.add("learn_tasks")
        if self.placement.roles:
            placement.add("roles")
        return {
            "seed": self.seed,
            "environment": self.environment.identity(),
            "algorithm": self.algorithm.identity(),
            "schedule": self.schedule.model_dump(mode="json", exclude={"max_stages"}),
            "placement": self.placement.model_dump(mode="json", include=placement),
        }


def any_of(schema: dict[str, Any]) -> None:
    """One of several models, as Prefect's form and its check of parameters take it.

    They validate settings without a `name`, which fit several of the models: `oneOf` would refuse those.
    """
    schema.update(at(4), anyOf=schema.pop("oneOf"))


class TrainConfig(RunConfig):
    """Everything that describes a training run."""

    algorithm: (
        Annotated[PPOSettings, Tag("ppo")]
        | Annotated[IMPALASettings, Tag("impala")]
        | Annotated[MAPPOSettings, Tag("mappo")]
        | Annotated[IPPOSettings, Tag("ippo")]
        | Annotated[DQNSettings, Tag("dqn")]
        | Annotated[SACSettings, Tag("sac")]
        | Annotated[OwnSettings, Tag(OWN)]
    ) = Field(
        default_factory=PPOSettings,
        description="The algorithm and its settings.",
        discriminator=by_name("ppo"),
        json_schema_extra=any_of,
    )
    shards: ShardSettings = Field(default_factory=ShardSettings, json_schema_extra=at(8))

    def identity(self) -> dict[str, Any]:
        """As of every run, and how shards are stored; left out where nothing is special, as in runs before it."""
        shards = {} if self.shards == ShardSettings() else {"shards": self.shards.model_dump(mode="json")}
        return {**super().identity(), **shards}

    @property
    def story(self) -> str:
        """What runs, in a few words."""
        if self.placement.policy == AUTO:
            return f"{super().story}, policy not chosen yet, lag {self.schedule.lag}"
        parts = ", ".join(f"{role.replicas} {role.name}" for role in self.policy.roles)
        if self.placement.policy == "single_learner_coarse":
            parts = f"{self.placement.act_tasks} act tasks"
        return f"{super().story}, {parts}, lag {self.schedule.lag}"

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        for kind in ("act", "env", "learn"):
            tasks = getattr(self.placement, f"{kind}_tasks")
            if tasks > self.environment.tiles:
                raise ValueError(
                    f"placement.{kind}_tasks = {tasks}, but there are only {self.environment.tiles} tiles "
                    f"(environment.num_envs / environment.envs_per_tile); each {kind} task owns at least one"
                )
        row_steps = self.algorithm.row_steps
        if self.schedule.round_steps % row_steps:
            raise ValueError(
                f"algorithm.sequence_steps = {row_steps}: schedule.round_steps = {self.schedule.round_steps} is no "
                f"whole number of sequences; choose a divisor"
            )
        tile_rows = self.environment.envs_per_tile * self.schedule.round_steps
        self.algorithm.check_round(self.shards_needed * tile_rows // row_steps)
        return self


ConfigT = TypeVar("ConfigT", bound=RunConfig)


def presets() -> dict[str, Path]:
    """Preset files by name."""
    return {path.stem: path for path in sorted(PRESETS_FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def load_preset(name: str) -> dict[str, Any]:
    """Read a preset by name, or a TOML file of one's own by path.

    Raises:
        ConfigError: there is no such preset or file, or it is no TOML.
    """
    path = presets().get(name) or Path(name)
    if not path.is_file():
        raise ConfigError(
            f"no preset '{name}'; there are: {', '.join(presets())}. A path to a .toml file of your own works as well"
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"preset '{path}' is no valid TOML: {error}") from error


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `override` laid over it, table by table."""
    merged = dict(base)
    for key, value in override.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def laid_over(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """As `merge`, for settings of a run: those of an algorithm go where the override names another one."""
    named = override.get("algorithm", {}).get("name")
    if named is not None and named != base.get("algorithm", {}).get("name", "ppo"):
        base = {key: value for key, value in base.items() if key != "algorithm"}
    return merge(base, override)


def build_config(values: Mapping[str, Any]) -> TrainConfig:
    """Validate the settings of a training run; errors as `validate`."""
    return validate(TrainConfig, values)


def validate(kind: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Validate the settings of a kind of run.

    Raises:
        ConfigError: one line a mistake, each naming the field, the value and what would be right.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(_explain(kind, item) for item in error.errors() if item["loc"][-1:] != ("bool",))
        ) from error


def choices_of(annotation: Any) -> dict[str, type[AlgorithmSettings]]:
    """Models by name, of a field that takes one of several algorithms; of any other field none."""
    members = [get_args(member) for member in get_args(annotation)]
    return {kind[1].tag: kind[0] for kind in members if len(kind) == 2 and isinstance(kind[1], Tag)}


def _explain(kind: type[RunConfig], item: Any) -> str:
    path, owner = _locate(kind, item["loc"])
    field = ".".join(path) or "configuration"
    if item["type"] == "extra_forbidden":
        return f"{field}: no such setting; there are: {', '.join(owner.model_fields)}"
    if item["type"] == "value_error":
        return f"{field}: {item['ctx']['error']}"
    if item["type"] == "union_tag_invalid":
        known = " or ".join(repr(name) for name in choices_of(kind.model_fields["algorithm"].annotation) if name != OWN)
        return f"{field}.name = {item['input']['name']!r}: input should be {known}, or 'module:Class' for your own"
    return f"{field} = {item['input']!r}: {item['msg'][0].lower()}{item['msg'][1:]}"


def _locate(kind: type[RunConfig], location: tuple[int | str, ...]) -> tuple[list[str], Any]:
    """A setting's path, and the model that has or lacks it. Locations also name the member of a union."""
    path: list[str] = []
    owner: Any = None
    inside: Any = kind
    for part in location:
        if part in (choices := choices_of(inside)):
            inside = choices[str(part)]
            continue
        if part == "float":
            continue
        path.append(str(part))
        owner, fields = inside, getattr(inside, "model_fields", {})
        if get_origin(inside) is dict:
            inside = get_args(inside)[1]
        else:
            inside = fields[part].annotation if part in fields else None
    return path, owner
