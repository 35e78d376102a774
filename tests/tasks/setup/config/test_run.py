"""Settings: what is wrong is refused before anything starts, by field and value, with what would be right."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import native
from penstock.flows.settings.options import configured, parse_overrides
from penstock.native.sockets import server as environment_server
from penstock.storage.digest import canonical_json
from penstock.storage.errors import ConfigError, RunExistsError, RunFinishedError
from penstock.storage.refs import Ref, checkpoint_name
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.run import describe_run
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.setup.config.loading import PRESETS_FOLDER, build_config, load_preset, merge, presets
from penstock.tasks.setup.config.run import TrainConfig
from penstock.tasks.setup.planning.resolve import resolve

from ....support.services.certificates import self_signed
from ....support.services.environment_server import EnvironmentProcess

PPO_FIELDS = (
    "name, hidden, learning_rate, final_learning_rate, anneal_rounds, discount, trace_decay, clip_range, "
    "entropy_weight, epochs, minibatches, gradient_norm, reward_scale, initial_log_std"
)
PPO_SETTINGS = (
    f"{PPO_FIELDS.replace('name, ', 'name, network, features, channels, sequence_steps, cells, ')}, "
    f"normalize_observation, normalize_reward, shared_network, value_weight, actions, reward_normalization, "
    f"advantage_normalization, value_clip_range, target_kl, joint_gradient_norm, final_entropy_weight"
)
IMPALA_FIELDS = (
    "name, network, features, channels, sequence_steps, cells, hidden, learning_rate, final_learning_rate, "
    "anneal_rounds, discount, trace_decay, rho_limit, c_limit, entropy_weight, value_weight, minibatches, "
    "gradient_norm, reward_scale, initial_log_std, normalize_observation, normalize_reward, final_entropy_weight"
)


def nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        build_config(values)
    return str(caught.value)


@pytest.mark.parametrize("value", [None, {"low": 1}, [], [[1.0]], float("inf")])
def test_a_value_that_no_environment_takes_is_refused(value: Any):
    """Values are finite numbers, true, false, text or lists of these; which of them the environment decides."""
    said = refusal(nested("environment.settings.gravity", value))
    expected = "expected a finite number, true, false, text, or a list of these"
    assert said == f"environment.settings.gravity: found {value!r}, {expected}"


@pytest.mark.parametrize(
    ("path", "value", "right"),
    [
        ("name", "Not A Name", "expected 1 to 64 of a-z, 0-9, '.', '_', '-', of which"),
        ("seed", -1, "greater than or equal to 0"),
        ("seed", 2**32, "less than 4294967296"),
        ("environment.num_envs", 0, "greater than or equal to 1"),
        ("environment.envs_per_tile", "many", "valid integer"),
        ("environment.max_episode_steps", 0, "greater than or equal to 1"),
        ("algorithm.name", "reinforce", "'ppo' or 'impala'"),
        ("algorithm.learning_rate", 0, "greater than 0"),
        ("algorithm.discount", 1.5, "less than or equal to 1"),
        ("algorithm.trace_decay", -0.1, "greater than or equal to 0"),
        ("algorithm.hidden", "64", "valid tuple, such as '[64, 64]'"),
        ("cluster.lease_seconds", "10m", "valid number, unable to parse string as a number; give a number of seconds"),
        ("schedule.round_steps", 1.5, "valid integer"),
        ("schedule.lag", 9, "less than or equal to 8"),
        ("distribution.act_tasks", 0, "greater than or equal to 1"),
        ("distribution.device", "tpu", "'auto', 'cpu' or 'cuda'"),
        ("distribution.quorum", 1.1, "less than or equal to 1"),
        ("cluster.lease_seconds", 0, "greater than 0"),
        ("shards.compression.observation", "gzip", "'lz4' or 'zstd'"),
    ],
)
def test_a_bad_value_is_named_with_what_would_be_right(path: str, value: Any, right: str):
    """`algorithm.discount = 1.5: input should be less than or equal to 1`."""
    said = refusal(nested(path, value))
    assert said.startswith(f"{path} = {value!r}: ")
    assert right in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "sed",
            f"sed: no such setting; there are: {', '.join(TrainConfig.model_fields)}",
        ),
        ("algorithm.learn_rate", f"algorithm.learn_rate: no such setting; there are: {PPO_SETTINGS}"),
    ],
)
def test_an_unknown_setting_is_named_with_those_that_exist(path: str, expected: str):
    """A misspelt setting must not train with a default."""
    assert refusal(nested(path, 1)) == expected


def test_mistakes_of_any_algorithm_are_named_alike():
    """By the setting's own path, whichever algorithm has it; and one is told what the chosen one has."""
    said = refusal({"algorithm": {"name": "impala", "discount": 2, "clip_range": 0.2}}).splitlines()
    assert said == [
        "algorithm.discount = 2: input should be less than or equal to 1",
        f"algorithm.clip_range: no such setting; there are: {IMPALA_FIELDS}",
    ]
    said = refusal({"algorithm": {"name": 3}})
    assert said.startswith("algorithm.name = 3: input should be 'ppo' or 'impala' or ")
    assert said.endswith(", or a custom 'module:Class'")
    assert refusal({"algorithm": "impala"}).startswith("algorithm = 'impala': input should be a valid dictionary")


def test_an_algorithm_without_a_name_is_ppo():
    """As before there was another, so that stored and written configurations stay valid, with the same identity."""
    config = build_config({"algorithm": {"epochs": 3}})
    assert config == build_config({"algorithm": {"name": "ppo", "epochs": 3}})
    assert ", ".join(config.identity()["algorithm"]) == PPO_FIELDS
    assert build_config({}).algorithm.name == "ppo"
    assert build_config({"algorithm": {"name": "impala"}}).algorithm.name == "impala"


@pytest.mark.parametrize(
    "path",
    [
        "schedule.target_return",
        "algorithm.learning_rate",
        "algorithm.initial_log_std",
        "algorithm.reward_scale",
        "cluster.lease_seconds",
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_are_finite(path: str, value: float):
    """`run.json` can't hold anything else, and nothing could be trained with it."""
    assert refusal(nested(path, value)).startswith(f"{path} = {value!r}: ")


def test_a_shard_has_one_codec():
    """Arrow compresses all buffers of a file in one way: two are refused, the same for several columns is fine."""
    said = refusal({"shards": {"compression": {"observation": "lz4", "reward": "zstd"}}})
    assert said.startswith("shards: compression by lz4 and zstd: a shard has one codec")
    both = {"observation": "zstd", "reward": "zstd"}
    assert build_config({"shards": {"compression": both}}).shards.compression == both


def test_the_order_of_stacked_columns_has_no_meaning():
    """Nor has naming one twice; a single one needs no list, as on the command line."""
    told = [{"stacked": ["b", "a", "b"]}, {"stacked": ["a", "b"]}]
    assert len({canonical_json(build_config({"shards": shards}).identity()) for shards in told}) == 1
    assert build_config({"shards": {"stacked": "observation"}}).shards.stacked == ("observation",)


def test_layers_are_not_empty():
    """A layer of no width, or of less, is refused here and not by torch in a worker."""
    for width in (0, -4):
        assert refusal({"algorithm": {"hidden": [64, width]}}).startswith(f"algorithm.hidden.1 = {width}: ")
    assert build_config({"algorithm": {"hidden": []}}).algorithm.hidden == ()


def test_every_mistake_is_reported_at_once():
    """The message has one line per mistake."""
    said = refusal({"algorithm": {"discount": 2, "foo": 1}, "seed": -3}).splitlines()
    assert [line.split(" ")[0].rstrip(":") for line in said] == ["seed", "algorithm.discount", "algorithm.foo"]


def test_tiles_divide_the_environments():
    """A run of 10 environments has no whole tiles of 4."""
    said = refusal({"environment": {"num_envs": 10, "envs_per_tile": 4}})
    assert said.startswith("environment: num_envs = 10 is not a multiple of envs_per_tile = 4")
    assert said.endswith("such as 8 or 12, or give envs_per_tile as well: one that divides it")
    assert refusal({"environment": {"num_envs": 3, "envs_per_tile": 4}}).endswith("envs_per_tile as well: 3")
    assert build_config({"environment": {"num_envs": 12, "envs_per_tile": 4}}).environment.tiles == 3


@pytest.mark.parametrize("kind", ["act", "env", "learn"])
def test_every_task_has_a_tile(kind: str):
    """Three tasks can't share two tiles, whatever they do; two can, and none is no number of tasks."""
    environment, field = {"num_envs": 8, "envs_per_tile": 4}, f"{kind}_tasks"
    said = refusal({"environment": environment, "distribution": {field: 3}})
    assert f"distribution.{field} = 3" in said
    assert "only 2 tiles" in said
    assert refusal({"distribution": {field: 0}}).startswith(f"distribution.{field} = 0: input should be greater than")
    assert getattr(build_config({"environment": environment, "distribution": {field: 2}}).distribution, field) == 2


@pytest.mark.parametrize("policy", ["multiple_learners", "central"])
def test_the_number_of_learners_counts_where_they_add_up(policy: str):
    """It decides how sums of gradients are rounded; with one learner it is left out, as it ever was."""
    environment = {"num_envs": 8, "envs_per_tile": 4}
    one, two = (
        build_config({"environment": environment, "distribution": {"policy": policy, "learn_tasks": count}}).identity()
        for count in (1, 2)
    )
    assert one != two
    assert (one["placement"]["learn_tasks"], two["placement"]["learn_tasks"]) == (1, 2)
    assert build_config({}).identity()["placement"].keys() == {
        "policy",
        "torch_threads",
        "gradient_block_rows",
        "quorum",
    }


def test_staleness_is_part_of_a_run():
    """The bytes follow from the bound and the order of arrivals; without a bound, identities are what they were."""
    environment = {"num_envs": 8, "envs_per_tile": 4}
    distribution = {"policy": "central", "learn_tasks": 2}

    def placement(**more: int) -> dict[str, object]:
        config = build_config({"environment": environment, "distribution": {**distribution, **more}})
        return dict(config.identity()["placement"])

    assert "max_staleness" not in placement()
    assert placement(max_staleness=0) == {**placement(), "max_staleness": 0}
    assert refusal({"distribution": {"max_staleness": -1}}).startswith("distribution.max_staleness = -1: ")


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_differences_between_snapshots_need_bfloat16(dtype: str):
    """More than half of the bytes of other types would be left."""
    said = refusal({"distribution": {"snapshot_differences": True, "snapshot_dtype": dtype}})
    assert f"snapshot_differences = true needs snapshot_dtype = bfloat16, but it is {dtype}" in said


def test_differences_between_snapshots_change_no_byte_of_a_run():
    """They are not part of its identity; the rounded weights are."""
    plain = build_config({"distribution": {"snapshot_dtype": "bfloat16"}})
    more = build_config({"distribution": {"snapshot_dtype": "bfloat16", "snapshot_differences": True}})
    assert plain.identity() == more.identity()


def test_no_minibatch_is_empty():
    """A round of 2 environments and 3 steps has 6 rows."""
    values = {"environment": {"num_envs": 2, "envs_per_tile": 2}, "schedule": {"round_steps": 3}}
    said = refusal(merge(values, {"algorithm": {"minibatches": 7}}))
    assert "algorithm.minibatches = 7" in said
    assert "only 6 rows" in said
    assert build_config(merge(values, {"algorithm": {"minibatches": 6}})).algorithm.minibatches == 6


def test_an_unknown_environment_or_setting_of_it_is_refused_with_those_that_exist():
    """The pool knows what there is, and its answer becomes one of ours."""
    with pytest.raises(ConfigError, match=r"environment: .*'Cart'; similar: CartPole-v1, .*`penstock envs` lists all"):
        make_pool(build_config({"environment": {"id": "Cart"}}), 1)
    with pytest.raises(ConfigError, match=r"environment: .*'gravty'.*gravity=9\.8"):
        make_pool(build_config({"environment": {"settings": {"gravty": 1.0}}}), 1)
    pool = make_pool(build_config({"environment": {"settings": {"gravity": 1.0}}}), 2)
    assert pool.config["gravity"].tolist() == [1.0, 1.0]


def test_a_run_warns_of_environments_that_restart_each_stage(caplog):
    """Those that can't save their state begin new episodes with each stage: as a warning, and in run.json."""
    said = describe_run(build_config({"environment": {"id": "gymnasium/CartPole-v1"}}))["promise"]["because"]
    assert "begin new episodes with each stage" in said
    assert "gymnasium/CartPole-v1 can't save its state: each stage (" in caplog.text
    caplog.clear()
    said = describe_run(build_config({"environment": {"id": "CartPole-v1"}}))["promise"]["because"]
    assert "the environment saves its state" in said
    assert not caplog.text


@pytest.mark.parametrize(
    ("algorithm", "environment", "said"),
    [
        ("ppo", "simple_spread_v3", r"simple_spread_v3 has 3 agents .* ppo can't learn from; choose mappo or ippo"),
        ("mappo", "CartPole-v1", r"CartPole-v1 has one reward .* mappo can't learn from; choose ppo or impala"),
    ],
)
def test_an_environment_that_the_algorithm_is_not_for_is_refused(algorithm: str, environment: str, said: str):
    """Rewards of several agents are never taken for one, nor one for those of several; what fits is named."""
    with pytest.raises(ConfigError, match=said):
        make_pool(build_config({"environment": {"id": environment}, "algorithm": {"name": algorithm}}), 1)


def test_a_flag_of_an_environment_can_be_set():
    """Every field of an environment's configuration can be given as a setting, also one that is true or false."""
    config = build_config({"environment": {"settings": {"sutton_barto_reward": True, "gravity": 9}}})
    assert make_pool(config, 1).config["sutton_barto_reward"].tolist() == [True]
    again = build_config(json.loads(canonical_json(config.model_dump(mode="json"))))
    assert make_pool(again, 1).config["sutton_barto_reward"].tolist() == [True]


def test_a_start_is_refused_before_anything_is_made(tmp_path: Path, served: str, monkeypatch: pytest.MonkeyPatch):
    """Policy and environment are checked before the store is touched; presets pass."""
    monkeypatch.setenv("PENSTOCK_ENVIRONMENT_ADDRESS", served)
    store = tmp_path / "runs"
    for change, said in (
        (
            {"distribution": {"policy": "coarse"}},
            r"distribution\.policy = 'coarse': no such policy; .*single_learner_coarse",
        ),
        ({"environment": {"id": "Cart"}}, "CartPole-v1"),
        (
            {"environment": {"num_envs": 8, "envs_per_tile": 4}, "distribution": {"learn_tasks": 2}},
            r"distribution\.learn_tasks = 2: policy 'single_learner_coarse' has 1 learner; .*multiple_learners",
        ),
        (
            {"environment": {"num_envs": 8, "envs_per_tile": 4}, "distribution": {"env_tasks": 2}},
            r"distribution\.env_tasks = 2: policy 'single_learner_coarse' has no tasks .*single_learner_fine",
        ),
        (
            {"shards": {"compression": {"pixels": "lz4"}}},
            r"shards: there is no column pixels; there are: observation",
        ),
        ({"shards": {"stacked": ["observation"]}}, r"shards\.stacked: 'observation': a column of float32\[4\] is no"),
        ({"shards": {"stacked": ["action"]}}, r"shards\.stacked: 'action': a column of int64\[\] is not a stack"),
    ):
        with pytest.raises(ConfigError, match=said):
            resolve(build_config({"store": str(store)} | change), "refuse")
    assert not store.exists()
    for name in presets():
        config = build_config(load_preset(name) | {"store": str(store), "name": name})
        if not lacking_package(config):
            resolve(config, "refuse")
    assert list(RunFolder(open_store(str(store)), "cartpole").store.list("")) == []


@pytest.mark.parametrize("if_exists", ["refuse", "resume"])
def test_a_start_names_the_reason_of_its_refusal(if_exists: str, tmp_path: Path):
    """A run that exists is refused or goes on, as asked; one that is finished does neither."""
    config = build_config({"store": str(tmp_path), "name": "mine"})
    run = RunFolder(open_store(str(tmp_path)), "mine")
    resolve(config, if_exists)
    run.create({"config": {}})
    if if_exists == "refuse":
        with pytest.raises(RunExistsError, match="penstock resume mine"):
            resolve(config, if_exists)
        return
    resolve(config, if_exists)
    run.log.append(
        Commit(
            stage=0,
            parent=run.genesis(),
            rounds=(0, 0),
            version=1,
            env_steps=8,
            episodes=0,
            shards=(),
            states=(),
            snapshots=(),
            checkpoint=Ref(checkpoint_name(0, "0" * 32), "0" * 32, 1),
            metrics={},
            evaluation=None,
            finished="max_stages 1 done",
        )
    )
    with pytest.raises(RunFinishedError, match=r"'mine' is finished \(max_stages 1 done\) with stage 0"):
        resolve(config, if_exists)


def lacking_package(config: TrainConfig) -> str:
    """Return the reason of an adapter that can't make its environment here; empty if it can."""
    if config.environment.id.startswith(("envpool/", "dm_control/", "dmc/", "mjx/", "LunarLander")):
        try:
            native.make(config.environment.id, 1, one_array=True).close()
        except (ValueError, ImportError) as error:
            return str(error)
    return ""


@pytest.fixture(name="served", scope="module")
def _served():
    with EnvironmentProcess() as server:
        yield server.address


def test_a_servers_certificate_is_no_part_of_a_runs_identity(tmp_path: Path):
    """A run that names none stores none, as before; one that does connects with it, and refuses a wrong path."""
    plain = build_config({"environment": {"id": "socket/CartPole-v1", "address": "127.0.0.1:1"}})
    assert "tls_certificate" not in plain.model_dump(mode="json")["environment"]
    with pytest.raises(ConfigError, match=r"tls_certificate = x.pem: found id = 'CartPole-v1'"):
        build_config({"environment": {"tls_certificate": "x.pem"}})
    made = self_signed(tmp_path, "server")
    command = [sys.executable, environment_server.__file__, "CartPole-v1", "--tls", *made.tls, "--port"]
    with EnvironmentProcess(command=command) as process:
        values = {"id": "socket/CartPole-v1", "address": process.address, "tls_certificate": made.certificate}
        trusting = build_config({"environment": values})
        make_pool(trusting, 1).close()
        with pytest.raises(ConfigError, match=r"environment: tls_certificate 'x.pem' can't be taken"):
            make_pool(build_config({"environment": {**values, "tls_certificate": "x.pem"}}), 1)
    assert trusting.identity() == plain.identity()
    assert build_config(json.loads(canonical_json(trusting.model_dump(mode="json")))) == trusting


@pytest.mark.parametrize("name", presets())
def test_presets_load(name: str, served: str, monkeypatch: pytest.MonkeyPatch):
    """Each that ships is a whole, checked configuration; it ends at a return, or with its learning rate schedule."""
    monkeypatch.setenv("PENSTOCK_ENVIRONMENT_ADDRESS", served)
    config = build_config(load_preset(name))
    if config.environment.id.startswith("ALE/"):
        pytest.importorskip("ale_py", reason="comes with penstock-rl[atari]")
    if config.environment.id.startswith("MinAtar/"):
        pytest.importorskip("minatar", reason="comes with penstock-rl[minatar]")
    if lacking := lacking_package(config):
        pytest.skip(lacking)
    make_pool(config, 1).close()
    annealed = getattr(config.algorithm, "anneal_rounds", 0)
    ends_with_rate = annealed == config.schedule.max_stages * config.schedule.rounds_per_stage
    assert ends_with_rate or config.schedule.target_return is not None


def test_an_unknown_preset_is_refused_with_those_that_exist():
    """And says which was meant, that a file would do, and where an environment's id belongs."""
    names = ", ".join(sorted(path.stem for path in PRESETS_FOLDER.glob("*.toml")))
    with pytest.raises(ConfigError, match=rf"no preset 'cartpol'; there are: {names}. Did you mean cartpole.*\.toml"):
        load_preset("cartpol")
    for name in ("dmc/cheetah-run", "Pendulum-v1"):
        with pytest.raises(ConfigError, match=rf"penstock train PRESET --environment\.id {name}\. "):
            load_preset(name)
    with pytest.raises(ConfigError, match=r"spread-mappo-agents\. The path of a \.toml file works as well"):
        load_preset("nothing-like-it")
    where = Path("nothing/like/it.toml").absolute()
    with pytest.raises(ConfigError, match=rf"there is no file '{where}'; presets, .* are: {names}"):
        load_preset("nothing/like/it.toml")


def test_a_preset_may_be_a_file(tmp_path: Path):
    """By path; a file that is no TOML is named."""
    path = tmp_path / "mine.toml"
    path.write_text("seed = 9\n[schedule]\nlag = 1\n")
    assert load_preset(str(path)) == {"seed": 9, "schedule": {"lag": 1}}
    path.write_text("seed = = 9\n")
    with pytest.raises(ConfigError, match=r"mine\.toml' is not valid TOML"):
        load_preset(str(path))


def test_merging_goes_table_by_table():
    """Settings that are not overridden stay, and neither side is changed."""
    base = {"seed": 1, "schedule": {"lag": 0, "round_steps": 8}}
    override = {"name": "x", "schedule": {"lag": 1}}
    assert merge(base, override) == {"seed": 1, "name": "x", "schedule": {"lag": 1, "round_steps": 8}}
    assert base == {"seed": 1, "schedule": {"lag": 0, "round_steps": 8}}
    assert override == {"name": "x", "schedule": {"lag": 1}}


def test_a_value_is_no_table(tmp_path: Path):
    """`environment = "Pendulum-v1"` would be lost in an option of its table, and another environment trained."""
    path = tmp_path / "mine.toml"
    for text, options in (
        ('environment = "Pendulum-v1"', ["--num-envs", "64"]),
        ('environment = "Pendulum-v1"', ["--environment.header", "x.hpp"]),
        ('algorithm = "ppo"', ["--algorithm.name", "dqn"]),
        ("schedule = 3", ["--max-stages", "1"]),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=rf"^{text.replace(chr(34), chr(39))}: expected a table of its settings"):
            configured(str(path), options, {})


def test_a_name_that_is_too_long_for_a_file_is_no_preset():
    """It is refused as any other."""
    with pytest.raises(ConfigError, match="no preset 'aaaa"):
        load_preset("a" * 300)


def test_a_configuration_survives_json():
    """It travels to workers, into `run.json` and through Prefect's form as JSON."""
    config = build_config(merge(load_preset("pendulum"), {"name": "x", "algorithm": {"hidden": [32, 16]}}))
    assert build_config(json.loads(canonical_json(config.model_dump(mode="json")))) == config


def test_a_configuration_is_frozen():
    """Assignment to a setting is refused."""
    with pytest.raises(ValueError, match="frozen"):
        TrainConfig().seed = 3


def test_the_form_has_the_fields_in_their_order():
    """Prefect's form sorts by position: each model's are 0, 1, 2 ... in the order of its fields."""
    schema = TrainConfig.model_json_schema()
    for model in [schema, *schema["$defs"].values()]:
        positions = [field["position"] for field in model["properties"].values()]
        assert positions == list(range(len(positions))), model["title"]


def test_a_users_placement_settings_are_refused_by_their_new_name():
    """A preset or an option of an earlier version is one message that names the replacement."""
    with pytest.raises(ConfigError, match=r"^placement: was renamed to distribution; rename the table"):
        build_config({"placement": {"act_tasks": 2}})
    with pytest.raises(ConfigError, match=r"^--placement.act-tasks was renamed to --distribution.act-tasks"):
        parse_overrides(["--placement.act-tasks", "2"])


def test_equal_settings_have_the_same_hash():
    """Tables among them, too: a custom algorithm may cache by its settings."""
    algorithm = {"name": "sac", "network": "leaves", "cells": {"map": [3]}}
    one, other = (build_config({"algorithm": algorithm}).algorithm for _ in range(2))
    assert hash(one) == hash(other)
    assert hash(one) != hash(build_config({"algorithm": {**algorithm, "cells": {}}}).algorithm)
