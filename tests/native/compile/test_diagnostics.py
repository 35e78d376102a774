"""Environments that do not compile: a person reads the place, the line, and what the contract wants."""

import re
from pathlib import Path

import pytest

from penstock import native

from ...support.environments.leaving import LEAVING

pytestmark = pytest.mark.usefixtures("cache")
QUICK = ["-O0"]

MISTAKES = """#include <penstock/library.hpp>
using namespace penstock;
struct Fine {
  static constexpr Info info{.id = "Fine-v0"};
  static constexpr Discrete<2> action{};
  static constexpr auto observation = Box<2>::symmetric({1.0, 1.0});
  struct Config { double weight = 1.0; PENSTOCK_FIELDS(Config, weight) } config;
  struct State { double x; PENSTOCK_FIELDS(State, x) } state;
  Step step(std::int64_t) { return {}; }
  void observe(std::span<float, 2> out) const { out[0] = out[1] = 0.0f; }
};
struct NoReset : Fine {};
struct WrongStep : Fine {
  void reset(Rng&) {}
  double step(std::int64_t) { return 1.0; }
};
struct LeftOut : Fine {
  struct State {
    double x;
    std::array<double, 3> forgotten;
    PENSTOCK_FIELDS(State, x)
  } state;
  void reset(Rng&) {}
};
struct WrongSize : Fine {
  static constexpr auto observation = Box<3>::symmetric({1.0, 1.0});
  void reset(Rng&) {}
};
struct WrongField : Fine {
  struct Config {
    float weight = 1.0f;
    PENSTOCK_FIELDS(Config, weight)
  } config;
  void reset(Rng&) {}
};
struct WrongMask : Fine {
  void reset(Rng&) {}
  void action_mask(std::span<bool, 3> out) const { out[0] = true; }
};
PENSTOCK_LIBRARY(NoReset, WrongStep, LeftOut, WrongSize, WrongField, WrongMask)
"""


FINE = MISTAKES[: MISTAKES.index("struct NoReset")]


def test_common_mistakes_are_reported_in_the_contracts_words(tmp_path: Path):
    """Each names the place in the user's file, its line, and what the contract wants; never a template."""
    header = tmp_path / "mistakes.hpp"
    header.write_text(MISTAKES)
    with pytest.raises(native.CompileError) as caught:
        native.load(header, flags=QUICK)
    message = str(caught.value)
    expected = [
        "mistakes.hpp does not compile:",
        "  mistakes.hpp:12: reset: an environment starts an episode with void reset(penstock::Rng& rng), which sets",
        "    12 | struct NoReset : Fine {};",
        "  mistakes.hpp:15: step: must be `penstock::Step step(action)`, where action is std::int64_t for Discrete<n>",
        "    15 | double step(std::int64_t) { return 1.0; }",
        "  mistakes.hpp:18: State: PENSTOCK_FIELDS must list every member of State; what is left out is not saved",
        "  mistakes.hpp:25: observe: must be `void observe(std::span<T, size> out) const`, with the type and",
        "  mistakes.hpp:26: observation: a value has bounds that are not in order, or both 0: symmetric({...})",
        "  mistakes.hpp:32: PENSTOCK_FIELDS: a member is a double, a bool or a std::int64_t; in a state also",
        "  and 2 more",
        f"full output of the compiler: {caught.value.log}",
    ]
    for part in expected:
        assert part in message, message
    assert "(found: float)" in message
    assert "[with" not in message
    log = caught.value.log.read_text()
    assert "check_environment" in log
    assert "action_mask: must be `void action_mask(std::span<bool, n> out) const`" in log


ALMOST = {
    "info: max_episode_steps is the number of steps after which": (
        'static constexpr Info info{.id = "Limit-v0", .max_episode_steps = -5};'
    ),
    "info: the name is missing: .id =": "static constexpr Info info{.max_episode_steps = 5};",
    "info: an environment says, in public, who it is": 'static inline const Info info{.id = "Late-v0"};',
    "Config: problem must be `const char* problem() const`": """struct Config {
    double weight = 1.0;
    PENSTOCK_FIELDS(Config, weight)
    const char* problem() { return nullptr; }
  } config;""",
    "state_problem: must be `const char* state_problem() const`": 'std::string state_problem() const { return ""; }',
    "Report: what an environment reports is a struct with names, and how many": """struct Report {
    double speed;
    PENSTOCK_FIELDS(Report, speed)
  } report;""",
    "Report: a reset shows at most as many of them": """struct Report {
    double speed;
    PENSTOCK_FIELDS(Report, speed)
  } report;
  static constexpr std::size_t reset_reports = 2;""",
    "step_limit: must be a text": 'static constexpr std::string_view step_limit = "weight";',
    "State: PENSTOCK_FIELDS lists a member twice": """struct State {
    double x, y;
    PENSTOCK_FIELDS(State, x, x)
  } state;""",
}


@pytest.mark.slow
def test_what_is_declared_almost_right_is_refused(tmp_path: Path):
    """Parts that an environment need not have would be ignored, and its settings or states not be checked.

    A negative limit would be none, and a name that is missing ended the process.
    """
    names = [f"Almost{index}" for index in range(len(ALMOST))]
    structs = [
        f"struct {name} : Fine {{\n  {text}\n  void reset(Rng&) {{}}\n}};\n"
        for name, text in zip(names, ALMOST.values(), strict=True)
    ]
    (header := tmp_path / "almost.hpp").write_text(FINE + "".join(structs) + f"PENSTOCK_LIBRARY({', '.join(names)})\n")
    with pytest.raises(native.CompileError, match=r"almost.hpp:13: info: max_episode_steps is the number") as caught:
        native.load(header, flags=QUICK)
    said = caught.value.log.read_text()
    assert [text for text in ALMOST if text not in said] == []


@pytest.mark.slow
def test_names_that_are_the_environments_own_are_left_to_it(tmp_path: Path):
    """A setting called problem, a struct Report that is not reported, a member called step_limit."""
    (header := tmp_path / "own.hpp").write_text(
        FINE.replace(
            "double weight = 1.0; PENSTOCK_FIELDS(Config, weight)",
            "double problem = 1.0; PENSTOCK_FIELDS(Config, problem)",
        )
        + "struct Own : Fine {\n  struct Report { int lines; };\n  static constexpr int step_limit = 5;\n"
        + "  void reset(Rng&) {}\n};\n"
        + "PENSTOCK_LIBRARY(Own)\n"
    )
    assert native.load(header, flags=QUICK).environment_ids == ("Fine-v0",)


@pytest.mark.slow
def test_an_action_of_no_choice_is_refused(tmp_path: Path):
    """In the contract's words."""
    (header := tmp_path / "none.hpp").write_text(
        FINE
        + "struct None : Fine {\n  static constexpr Discrete<0> action{};\n  void reset(Rng&) {}\n};\n"
        + "PENSTOCK_LIBRARY(None)\n"
    )
    with pytest.raises(native.CompileError, match="Discrete: an action is one of at least 1 choice"):
        native.load(header, flags=QUICK)


@pytest.mark.slow
def test_a_step_without_its_result_is_refused(tmp_path: Path):
    """A compiler warns of it alone, and whatever is in memory would be the reward."""
    (header := tmp_path / "ends.hpp").write_text(
        FINE.replace("{ return {}; }", "{ if (state.x > 1) return {}; }")
        + "struct Ends : Fine {\n  void reset(Rng&) {}\n};\nPENSTOCK_LIBRARY(Ends)\n"
    )
    with pytest.raises(native.CompileError, match=r"ends.hpp:9: control reaches end of non-void function"):
        native.load(header, flags=QUICK)


@pytest.mark.slow
def test_a_teams_observation_has_an_axis_of_its_agents(tmp_path: Path):
    """Without it the pool's arrays would be split at the wrong places."""
    (header := tmp_path / "team.hpp").write_text(
        LEAVING.replace("Box<agents, 3>", "Box<6>").replace("Leaving-v0", "Without-axis-v0")
    )
    with pytest.raises(native.CompileError, match="observation: with `agents` its first axis is theirs"):
        native.load(header, flags=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(("right", "wrong"), [("agents", "walkers"), ("MultiDiscrete<3, agents>", "Discrete<3>")])
def test_a_teams_action_is_one_for_each_agent(tmp_path: Path, right: str, wrong: str):
    """MultiDiscrete without `agents` would compile, and train until torch found another shape."""
    (header := tmp_path / "team.hpp").write_text(
        LEAVING.replace(right, wrong).replace("Leaving-v0", "Acts-otherwise-v0")
    )
    with pytest.raises(native.CompileError, match=r"action: several agents, static constexpr std::size_t agents = 2;"):
        native.load(header, flags=QUICK)


@pytest.mark.slow
def test_syntax_errors_are_reported_with_their_line(tmp_path: Path):
    """A misspelt name, or a header that is not there: the compiler's sentence, the place, the line."""
    header = tmp_path / "slip.hpp"
    header.write_text(MISTAKES.replace("return {}; }", "return {.reward = stat.x}; }"))
    with pytest.raises(native.CompileError, match=r"(?s)slip.hpp:9: .*'stat'.*\n    9 \| Step step"):
        native.load(header, flags=QUICK)
    with pytest.raises(native.CompileError, match=r"(?s):2: .*absent.hpp.*\n    2 \| #include"):
        native.load('// as text\n#include "absent.hpp"\nPENSTOCK_LIBRARY(Absent)\n')


@pytest.mark.slow
def test_an_error_in_an_included_file_has_its_place(tmp_path: Path):
    """Also where the include goes up a folder, where a folder's name has a colon, and where an include is missing."""
    (folder := tmp_path / "a:b").mkdir()
    (part := tmp_path / "part.hpp").write_text("inline double twice(double x) { return 2 * y; }\n")
    (header := folder / "mine.hpp").write_text(
        f'#include "../part.hpp"\n{FINE}struct Mine : Fine {{\n  void reset(Rng&) {{ state.x = z; }}\n}};\n'
        "PENSTOCK_LIBRARY(Mine)\n"
    )
    with pytest.raises(native.CompileError) as caught:
        native.load(header, flags=QUICK)
    assert re.search(r"part.hpp:1: 'y' was not declared", str(caught.value)), caught.value
    assert re.search(r"mine.hpp:14: 'z' was not declared", str(caught.value)), caught.value
    part.write_text('#include "absent.hpp"\n')
    with pytest.raises(native.CompileError, match=r"part.hpp:1: absent.hpp: No such file or directory"):
        native.load(header, flags=QUICK)


@pytest.mark.slow
def test_two_lines_that_export_are_one_too_many(tmp_path: Path):
    """The sentence says how one line names several; a line may stand behind a struct's end."""
    (header := tmp_path / "two.hpp").write_text(
        FINE + "struct Two : Fine {\n  void reset(Rng&) {}\n}; PENSTOCK_LIBRARY(Two)\nPENSTOCK_LIBRARY(Two)\n"
    )
    with pytest.raises(native.CompileError, match="PENSTOCK_LIBRARY stands here twice; one line lists all"):
        native.load(header, flags=QUICK)
