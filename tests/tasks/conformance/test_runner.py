"""`penstock check-algorithm` finds every kind of fault that it promises to find, and none in sound ones."""

from pathlib import Path

import pytest

from penstock.flows.cli.check import check_one_algorithm
from penstock.native.conformance.report import Report
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import REPLAY_PRESETS_FOLDER, choices_of, load_preset, presets
from penstock.tasks.setup.config.replay import ReplayConfig
from penstock.tasks.setup.config.run import TrainConfig

from ...support.environments.seeing_teams import SEEING
from ...support.environments.structured_teams import TEAM
from ...support.slow import slow_after

FILE = Path(__file__).parents[2] / "support" / "algorithms" / "flawed_algorithms.py"

SMALL = ["--algorithm.hidden", "[8]"]
MEMORY_OF_4 = ["--algorithm.network", "recurrent", "--algorithm.features", "4", "--algorithm.sequence-steps", "4"]
INIT, ROWS = "init is a function of the seed", "a snapshot is enough to act, and rows are as declared"
PURE, ROW_WISE, GREEDY = "act is a function of its arguments", "act is row-wise", "zero noise is greedy"
LEARNING, RATIO = "learning is a function of its arguments", "the first minibatch's ratio is 1"
STATISTICS, PARTS = "statistics are global", "parts of a minibatch add up"
KERNELS = "kernels and torch agree"
BOOTSTRAP = "a truncated episode and a round's end are bootstrapped"
LEAK, UPDATE = "nothing leaks over an episode's end", "update changes its own group alone"

FAULTS = [
    ("ColdLearning", RATIO, "another log-probability of the stored actions than act"),
    ("Counting", PURE, "act changes the algorithm object (calls/act)"),
    ("CountingOutside", PURE, "act returns another result when it is called again"),
    ("Drawing", PURE, "act changes a global random generator (torch)"),
    ("DrawingLoss", LEARNING, "the loss 'value' changes a global random generator (torch)"),
    ("Centred", ROW_WISE, "of other rows changes with the observation of row 0"),
    ("Contrary", GREEDY, "below another's, expected the likeliest"),
    ("NormalisedByTile", STATISTICS, "post: 'advantage' depends on which environments share a tile"),
    ("MeansAsStats", STATISTICS, "stats: 'advantage' of two tiles adds up to"),
    ("MeansOfMinibatches", PARTS, "minibatch_stats: 'offset' of two parts of a minibatch adds up to"),
    ("MeanLoss", PARTS, "the loss 'value': gradients of three parts"),
    ("NormalisedByMinibatch", PARTS, "the loss 'policy': gradients of three parts"),
    ("SharedOutput", PARTS, "the loss 'policy': 'entropy' of a row depends on the other rows"),
    ("SeesThePath", KERNELS, "the loss 'value' has another gradient by the kernels"),
    ("TruncationIsTheEnd", BOOTSTRAP, "after an episode was truncated at the time limit changes no gradient"),
    ("NothingFollowsTheRound", BOOTSTRAP, "after an episode was cut off by the round's end changes no gradient"),
    ("ValueAfterTheEnd", LEAK, "after a termination changes a gradient"),
    ("OneLongEpisode", LEAK, "of an episode that was truncated changes with the first row of the next one"),
    ("WrongType", ROWS, "act gives 'log_probability' as float64[4], expected float32[4]"),
    ("MissingColumn", ROWS, "act returns the columns action, expected those of rows: action, log_probability"),
    ("ReadsTheValue", ROWS, "act reads 'value', which a snapshot lacks: it has the groups policy"),
    ("UnseededInit", INIT, "init changes a global random generator (torch)"),
    ("OneInit", INIT, "init(1) and init(2) return the same parameters"),
    ("StepsEverything", UPDATE, "update for the loss 'policy' changes value"),
    ("ForgetsToStep", UPDATE, "update for the loss 'policy' changes no parameter of 'policy'"),
    ("StepsAfterwards", UPDATE, "after_minibatch changes the parameters of policy"),
    ("CountsMinibatches", UPDATE, "after_minibatch changes the algorithm object (done)"),
    (
        "NotIndependent",
        UPDATE,
        "the loss 'value' has another gradient after an update of 'policy', and is declared independent",
    ),
    ("SeesAnotherAgent", UPDATE, "the loss 'value' of agents [1] has another gradient after an update of 'policy'"),
    ("WritesIntoRows", LEARNING, "post changes its arguments (1/columns/reward)"),
]


def failures(report: Report) -> dict[str, str]:
    return {check.name: check.detail for check in report.checks if check.outcome == "fail"}


@pytest.mark.parametrize(("flawed", "check", "said"), FAULTS, ids=[name for name, _, _ in FAULTS])
def test_a_fault_is_found_by_name(flawed: str, check: str, said: str):
    """The check for that fault reports it, with the finding and the fix."""
    found = failures(check_one_algorithm(f"{FILE}:{flawed}", "CartPole-v1", SMALL))
    assert said in found[check]


def test_all_options_of_ppo_pass():
    """Those that bring columns, sums of minibatches and sums of environments."""
    options = [
        *("--algorithm.actions", "squashed", "--algorithm.normalize-reward", "true"),
        *("--algorithm.reward-normalization", "running", "--algorithm.advantage-normalization", "minibatch"),
        *("--algorithm.joint-gradient-norm", "true", "--algorithm.value-clip-range", "0.2"),
        *("--algorithm.target-kl", "0.05"),
    ]
    assert failures(check_one_algorithm("ppo", "Pendulum-v1", options)) == {}


def test_a_vector_that_is_not_in_the_middle_is_found():
    """Zero noise must give a vector in the middle of those with noise."""
    found = failures(check_one_algorithm(f"{FILE}:OneSided", "Pendulum-v1", []))
    assert "with zero noise a number of the action is larger than 0%" in found[GREEDY]


ALL = sorted(
    {name for kind in (TrainConfig, ReplayConfig) for name in choices_of(kind.model_fields["algorithm"].annotation)}
    - {"custom"}
)


SPREAD = ("simple_spread_v3",)
ENVIRONMENTS = {"mappo": SPREAD, "ippo": SPREAD} | {
    **dict.fromkeys(("dqn", "qr_dqn"), ("CartPole-v1",)),
    **dict.fromkeys(("sac", "td3", "td3_bc"), ("Pendulum-v1",)),
}
BOTH = ("CartPole-v1", "Pendulum-v1")


@pytest.mark.parametrize(
    ("name", "environment_id"), [(name, environment) for name in ALL for environment in ENVIRONMENTS.get(name, BOTH)]
)
def test_shipped_algorithms_pass(name: str, environment_id: str):
    """There is no false alarm on the algorithms that ship."""
    report = check_one_algorithm(name, environment_id, [])
    assert failures(report) == {}
    assert len(report.checks) == 13


STORED = ["behaviour_cloning", "iql"]
PLACES = ("CartPole-v1", "Pendulum-v1", "ConnectFour-v0", "PositionOnlyCartPole-v0")


@pytest.mark.parametrize(
    ("name", "environment_id"), slow_after(len(STORED), [(name, place) for place in PLACES for name in STORED])
)
def test_learning_from_stored_rows_with_a_memory_passes(name: str, environment_id: str):
    """Memories end where an episode does. Cloning has no values that could be bootstrapped; IQL's sequences have."""
    memory = ["--algorithm.network", "recurrent", "--algorithm.features", "8", "--algorithm.burn-in-steps", "6"]
    report = check_one_algorithm(name, environment_id, [*SMALL, *memory])
    assert failures(report) == {}
    skipped = [RATIO] if name == "iql" else [RATIO, BOOTSTRAP]
    assert [check.name for check in report.checks if check.outcome == "skip"] == skipped


@pytest.mark.parametrize("name", slow_after(1, ["sac", "td3"]))
def test_replayed_memories_of_vectors_pass(name: str):
    """Actor and critics have a memory each; what follows a sequence is bootstrapped."""
    memory = ["--algorithm.network", "recurrent", "--algorithm.features", "8", "--algorithm.burn-in-steps", "6"]
    report = check_one_algorithm(name, None, [*SMALL, *memory])
    assert failures(report) == {}
    assert [check.name for check in report.checks if check.outcome == "skip"] == [RATIO]


def test_sequences_of_values_that_nothing_bootstraps_are_found():
    """Rows with several steps that depend on rewards are those of values."""
    found = failures(check_one_algorithm(f"{FILE}:BootstrapsNothing", "CartPole-v1", [*SMALL, *MEMORY_OF_4]))
    assert "after an episode was truncated at the time limit changes no gradient" in found[BOOTSTRAP]


@pytest.mark.parametrize("name", ["td3_bc", "halfcheetah-td3-bc", *slow_after(0, ["sac", "td3", "mappo", "ippo"])])
def test_without_an_environment_one_is_taken_that_the_algorithm_can_act_in(name: str):
    """CartPole's actions are no vectors, and one agent is no team."""
    assert failures(check_one_algorithm(name, None, [])) == {}


@pytest.mark.parametrize("name", slow_after(1, ["mappo", "ippo"]))
@pytest.mark.parametrize("environment_id", slow_after(1, ["simple_spread_v3", "simple_spread_continuous_v3"]))
def test_algorithms_with_networks_for_each_agent_pass(name: str, environment_id: str):
    """No loss reads another agent's networks, kernels and torch agree, and every agent's ratio is checked."""
    report = check_one_algorithm(name, environment_id, ["--algorithm.shared-parameters", "false"])
    assert {check.outcome for check in report.checks} == {"pass"}
    assert len(report.checks) == 13


@pytest.mark.parametrize("name", ["spread-mappo", "cartpole-dqn"])
def test_a_preset_is_checked_in_its_environment(name: str):
    """With its settings, and options on top; another environment may provide the rows."""
    report = check_one_algorithm(name, None, ["--algorithm.hidden", "[8]"])
    assert failures(report) == {}
    preset = load_preset(name)
    assert report.id == f"{preset['algorithm']['name']} on {preset['environment']['id']}"
    if name == "spread-mappo":
        other = check_one_algorithm(name, "simple_spread_continuous_v3", ["--algorithm.hidden", "[8]"])
        assert (failures(other), other.id) == ({}, "mappo on simple_spread_continuous_v3")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "halfcheetah-iql" else pytest.mark.slow)
        for name in presets(REPLAY_PRESETS_FOLDER)
    ],
)
def test_a_replays_preset_is_checked_where_the_user_says(name: str):
    """Such a preset has no environment; its settings apply, and options on top, which no training run has."""
    environment = "Floorplan-v0" if name.startswith("floorplan") else "Pendulum-v1"
    option = ["--algorithm.expectile", "0.8"] if "iql" in name else []
    report = check_one_algorithm(name, environment, ["--algorithm.hidden", "[8]", *option])
    assert failures(report) == {}
    assert report.id == f"{load_preset(name, REPLAY_PRESETS_FOLDER)['algorithm']['name']} on {environment}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mappo", "ippo"])
def test_structured_actions_of_teams_are_checked(name: str):
    """Agents have structures of their own, of choices and of numbers, with masks, and one leaves."""
    settings = "{masked = true, leaving = true}"
    report = check_one_algorithm(name, TEAM, ["--algorithm.hidden", "[8]", "--environment.settings", settings])
    assert failures(report) == {}
    assert report.id == f"{name} on {TEAM}"


@pytest.mark.parametrize(("name", "shared"), slow_after(1, [("mappo", "true"), ("ippo", "false")]))
def test_structured_observations_of_teams_are_checked(name: str, shared: str):
    """With an encoder for each leaf, masks, an agent that lacks a picture, and one that leaves."""
    environment = ["--environment.structured", "true", "--environment.settings", "{masked = true, leaving = true}"]
    network = ["--algorithm.network", "leaves", "--algorithm.features", "4", "--algorithm.shared-parameters", shared]
    report = check_one_algorithm(name, SEEING, ["--algorithm.hidden", "[8]", *environment, *network])
    assert failures(report) == {}
    assert len(report.checks) == 13


@pytest.mark.parametrize("cells", slow_after(1, ["{image = [11, 6, 3]}", "{}"]))
def test_leaves_of_another_librarys_environment_are_checked(cells: str):
    """MiniGrid's view by its convolutions, as cells or as pixels, beside its direction."""
    pytest.importorskip("minigrid", reason="comes with penstock-rl[minigrid]")
    leaves = ["--environment.structured", "true", "--algorithm.network", "leaves", "--algorithm.features", "4"]
    report = check_one_algorithm(
        "ppo", "minigrid/MiniGrid-Empty-5x5-v0", ["--algorithm.hidden", "[8]", *leaves, "--algorithm.cells", cells]
    )
    assert failures(report) == {}
    assert len(report.checks) == 13


def test_settings_of_the_environment_are_those_of_its_rows():
    """They apply to an algorithm and to a preset; one that the environment does not have is refused."""
    unknown = ["--environment.settings", "{unknown = 1}"]
    for target, named in (("ppo", "CartPole-v1"), ("ppo", None), ("cartpole", "Pendulum-v1")):
        with pytest.raises(ConfigError, match="unknown"):
            check_one_algorithm(target, named, unknown)


def test_settings_of_replays_alone_are_taken():
    """Options of an algorithm by name are those of replays, if replays alone have it."""
    assert failures(check_one_algorithm("iql", "CartPole-v1", ["--algorithm.expectile", "0.8"])) == {}
    with pytest.raises(ConfigError, match=r"--algorithm\.expectile: no such setting"):
        check_one_algorithm("ppo", "CartPole-v1", ["--algorithm.expectile", "0.8"])


TEAM_SETTINGS = {
    "values": {"normalize-value": "true", "huber-delta": "1", "value-clip-range": "0.2"},
    "memories": {"network": "recurrent", "features": "8"},
    "all, apart": {
        "network": "recurrent",
        "features": "8",
        "sequence-steps": "8",
        "normalize-value": "true",
        "value-clip-range": "0.2",
        "shared-parameters": "false",
    },
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(name, settings, marks=() if (name, settings) == ("ippo", "all, apart") else pytest.mark.slow)
        for name in ("mappo", "ippo")
        for settings in TEAM_SETTINGS
    ],
)
def test_settings_of_values_and_memories_pass(name: str, settings: str):
    """MAPPO and IPPO with them: the ratio is 1 also where sequences begin with memories, and nothing leaks."""
    options = [part for key, value in TEAM_SETTINGS[settings].items() for part in (f"--algorithm.{key}", value)]
    report = check_one_algorithm(name, "simple_spread_v3", options)
    assert {check.outcome for check in report.checks} == {"pass"}


def test_unusable_files_names_and_settings_are_refused(tmp_path: Path):
    """Files with several algorithms or none, unknown names and wrong settings are refused."""
    with pytest.raises(ConfigError, match=r"ColdLearning, Counting.* expected one; name it"):
        check_one_algorithm(str(FILE), "CartPole-v1", [])
    empty = tmp_path / "empty_algorithm.py"
    empty.write_text("")
    with pytest.raises(ConfigError, match="has no algorithm, expected one"):
        check_one_algorithm(str(empty), "CartPole-v1", [])
    with pytest.raises(ConfigError, match=r"there is no file 'nowhere.py'"):
        check_one_algorithm("nowhere.py", "CartPole-v1", [])
    with pytest.raises(
        ConfigError,
        match=r"no algorithm 'nosuch'; .*ppo, .*td3, behaviour_cloning, iql, td3_bc, a preset .*spread-ippo.*, a file",
    ):
        check_one_algorithm("nosuch", "CartPole-v1", [])
    with pytest.raises(ConfigError, match=r"algorithm.epochs = 0: input should be greater than or equal to 1"):
        check_one_algorithm("ppo", "CartPole-v1", ["--algorithm.epochs", "0"])
