"""The site names every page, and links lead to existing files."""

import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from penstock import tasks
from penstock.flows.cli.main import app
from penstock.flows.settings.options import configured, resolve_setting
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import presets
from penstock.tasks.setup.config.replay import ReplayConfig
from penstock.tasks.setup.config.run import TrainConfig

ROOT = Path(tasks.__path__[0]).resolve().parent
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
ANCHOR = re.compile(r"\]\(([^)\s#:]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)
COMMAND = re.compile(
    r"^(?: +|)(?:kubectl exec \S+ -- |docker compose .* exec \S+ |(?:[A-Z_]+=\S+ +)*)(penstock [a-z][^`]*?)$"
    r"|`(penstock [a-z][^`]+)`",
    re.MULTILINE,
)
REMARK = re.compile(r"\s#\s|\s\||&&|;|\s>")
"""The end of a command in a line of a shell."""


def pages_of(nav: Any) -> Iterator[str]:
    """Yield the pages of a table of contents, at any depth."""
    if isinstance(nav, str):
        yield nav
    else:
        for below in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(below)


def test_the_site_names_every_page():
    """A page outside the table of contents is not found: `make docs` would refuse it, but takes longer."""
    pages = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(pages) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))


def test_links_lead_to_files():
    """Links of every Markdown file lead to existing pages, code, results and pictures."""
    assert len(pages()) > 20
    broken = [
        f"{source.relative_to(ROOT)} -> {link}"
        for source in pages()
        for link in LINK.findall(source.read_text(encoding="utf-8"))
        if "://" not in link and not (source.parent / link).exists()
    ]
    assert broken == []


def test_links_lead_to_headings():
    """The part of a link after `#` is a heading of the page that it leads to, as both GitHub and the site name it."""
    broken = [
        f"{source.relative_to(ROOT)} -> {link}#{anchor}"
        for source in pages()
        for link, anchor in ANCHOR.findall(source.read_text(encoding="utf-8"))
        if anchor not in anchors(source.parent / link if link else source)
    ]
    assert broken == []


def test_commands_have_options_that_exist():
    """Each `penstock` command of a page names a command, options and settings that there are."""
    read = list(written_commands())
    assert len(read) > 200
    wrong = [f"{page}: {command}: {problem}" for page, command in read for problem in problems_of(command)]
    assert wrong == []


def test_training_commands_have_valid_settings():
    """Those that name a preset, or take the default one, are not refused for the values of their settings."""
    wrong, read = [], 0
    for page, command in written_commands():
        _, name, *words = shlex.split(command)
        if name in ("train", "plan", "scale"):
            # A sentence may mention an option without its value, or with a letter in its place.
            context = program().commands[name].make_context(name, words, resilient_parsing=True)
            if (preset := context.params["preset"] or "").startswith("-") or preset in presets():
                read += 1
                wrong += [f"{page}: {command}: {problem}" for problem in refusal(preset, context.args)]
    assert read > 80
    assert wrong == []


def test_settings_that_do_not_fit_are_found():
    """More act tasks than the preset has tiles, for example."""
    assert "only 1 tiles" in refusal("cartpole", ["--act-tasks", "4"])[0]


def test_commands_that_do_not_exist_are_found():
    """A renamed command, option or setting is said, and a page's way of writing a command does not hide it."""
    page = (
        "    FOO=1 penstock train cartpole \\\n      --lagg 1   # a remark\n`penstock gc RUN --dry`, `penstock sing`\n"
    )
    assert [problems_of(command) for command in commands(page)] == [["--lagg"], ["--dry"], ["sing"]]


def test_presets_of_the_tables_ship():
    """Those that the tables of families and of algorithms name exist; each table has its column of them."""
    names = {path.stem for path in (Path(tasks.__path__[0]) / "setup" / "config" / "presets").rglob("*.toml")}
    for page, least in (("other_environments.md", 12), ("algorithms.md", 15)):
        rows = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
        begin = next(index for index, row in enumerate(rows) if re.match(r"\|.*\| presets? \|$", row))
        table = itertools.takewhile(lambda row: row.startswith("|"), rows[begin + 2 :])
        named = re.findall(r"`([^`]+)`", " ".join(row.rstrip("| ").rpartition("| ")[2] for row in table))
        assert len(named) >= least
        assert {*named} <= names, page


def test_the_board_wrote_its_figures():
    """docs/benchmarks.md, its pictures and the marked figures of other pages say what the stored results say."""
    checked = check_board(ROOT)
    assert checked.returncode == 0, checked.stderr


def test_figures_that_the_board_did_not_write_are_found(tmp_path: Path):
    """Each page with a figure that somebody improved by hand is named, and no other."""
    copy_pages(tmp_path)
    improved = {
        "README.md": (r"(<!-- board:ppo-rates -->)\d+", r"\g<1>999"),
        "docs/comparison.md": (r"(<!-- board:ratio-range -->)[\d.]+", r"\g<1>9.9"),
        "docs/benchmarks.md": (r"\*\*missed\*\*", "reached"),
        "docs/images/board-ppo.svg": (r'width="\d+\.\d"', 'width="400.0"'),
    }
    for page, (written, altered) in improved.items():
        text = (tmp_path / page).read_text(encoding="utf-8")
        changed = re.sub(written, altered, text, count=1)
        assert changed != text
        (tmp_path / page).write_text(changed, encoding="utf-8")
    named, said, _ = check_board(tmp_path).stderr.partition(": not what the stored results say")
    assert said
    assert set(named.split(", ")) == improved.keys()


def test_rings_mark_where_a_run_was_interrupted(tmp_path: Path):
    """Each interruption of a trial is a ring on its curve, at the env steps that were committed, and in the text."""
    copy_pages(tmp_path)
    trial = {"seed": 1, "seconds": 60.0, "command": "penstock train pong", "env_steps": 10_035_200}
    store_trial(tmp_path, "pong", trial | {"returns": list(range(49)), "interruptions": [0, 1_024_000, 10_035_200]})
    written = board_page("--root", str(tmp_path))
    assert written.returncode == 0, written.stderr
    picture = (tmp_path / "docs" / "images" / "returns-pong.svg").read_text(encoding="utf-8")
    rings = re.findall(r'<circle cx="([\d.]+)".*?<title>interrupted at ([\d,]+) environment steps</title>', picture)
    assert [steps for _, steps in rings] == ["0", "1,024,000", "10,035,200"]
    left, inner, right = (float(x) for x, _ in rings)
    assert (inner - left) / (right - left) == pytest.approx(1_024_000 / 10_035_200, abs=1e-3)
    page = (tmp_path / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert "seed 1: interrupted with 0, 1,024,000, 10,035,200 environment steps committed, and resumed" in page


def test_connect_four_has_a_picture_and_a_table_for_each_of_its_series(tmp_path: Path):
    """A series with a figure for the last part alone has a table and no picture."""
    copy_pages(tmp_path)
    series = {"returns": 20.0, "wins_against_random": 97.5, "elo": 1_000.0}
    trial: dict[str, Any] = {"seed": 1, "seconds": 60.0, "command": "penstock train", "env_steps": 13_107_200}
    trial |= {key: [value * (part + 1) / 10 for part in range(10)] for key, value in series.items()}
    store_trial(tmp_path, "connect-four", trial | {"wins_looking_ahead": [None] * 9 + [52.5]})
    written = board_page("--root", str(tmp_path))
    assert written.returncode == 0, written.stderr
    pictures = sorted(path.name for path in (tmp_path / "docs" / "images").glob("returns-connect-four*"))
    ends = ("-elo.svg", "-wins-against-random.svg", ".svg")
    assert pictures == [f"returns-connect-four{end}" for end in ends]
    page = (tmp_path / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    section = page.partition("### PPO by self-play on connect four")[2].partition("\n### ")[0]
    for early, last in (("4.0", "20.0"), ("19.5", "97.5"), ("200.0", "1,000.0"), ("-", "52.5")):
        assert f"| Penstock | {early} | {last} |" in section


def commands(text: str) -> Iterator[str]:
    """Yield the `penstock` commands of a page, of whole lines and within sentences, each in one line."""
    for line, within in COMMAND.findall(re.sub(r"\\\n\s*", " ", text)):
        yield " ".join(REMARK.split(line or within)[0].split())


def written_commands() -> Iterator[tuple[str, str]]:
    """Yield page and command of all pages but those that keep what there was: the changelog, and dated results."""
    for page in pages():
        name = page.relative_to(ROOT).as_posix()
        if name != "CHANGELOG.md" and "/results/" not in name:
            yield from ((name, command) for command in commands(page.read_text(encoding="utf-8")))


def refusal(preset: str, arguments: list[str]) -> list[str]:
    """Return the reason why settings on top of a preset are refused; nothing if they are not."""
    try:
        configured(preset, arguments, {})
    except ConfigError as error:
        return [str(error)]
    return []


def problems_of(command: str) -> list[str]:
    """Return the names in a command that do not exist."""
    _, *words = shlex.split(command)
    found = program()
    while hasattr(found, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in found.commands:
            return [name]
        found = found.commands[name]
    options = {option for parameter in found.params for option in parameter.opts + parameter.secondary_opts}
    asked = [word.partition("=")[0] for word in words if word.startswith("--") and word not in ("--", "--help")]
    kind = ReplayConfig if found.name == "replay" else TrainConfig
    takes_settings = found.context_settings.get("ignore_unknown_options", False)
    return [option for option in asked if option not in options and not (takes_settings and is_setting(option, kind))]


@cache
def program() -> Any:
    """Return the command `penstock` with all below it."""
    return typer.main.get_command(app)


@cache
def is_setting(option: str, kind: type[ReplayConfig | TrainConfig]) -> bool:
    """Return whether an option names a setting."""
    try:
        resolve_setting(option[2:].replace("-", "_"), kind)
    except ConfigError:
        return False
    return True


def copy_pages(root: Path) -> None:
    """Copy the pages that show figures, their pictures and the results."""
    for name in ("README.md", "docs/comparison.md", "docs/benchmarks.md"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for name in ("docs/images", "benchmarks/results"):
        shutil.copytree(ROOT / name, root / name)


def store_trial(root: Path, row: str, trial: dict[str, Any]) -> None:
    """Store a result of Penstock, in place of all that the row has."""
    folder = root / "benchmarks" / "results" / "returns" / row
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "penstock-1.json").write_text(json.dumps(trial), encoding="utf-8")
    for picture in (root / "docs" / "images").glob(f"returns-{row}*.svg"):
        picture.unlink()


def check_board(root: Path) -> subprocess.CompletedProcess[str]:
    """Compare the board's figures below a checkout's root with its results."""
    return board_page("--check", "--root", str(root))


def board_page(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Write the board's pages, or compare them."""
    command = [sys.executable, "-m", "benchmarks.board.page", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def pages() -> list[Path]:
    """Return every Markdown file of the repository's documentation."""
    return [*ROOT.glob("*.md"), *(path for folder in ROOT.iterdir() for path in markdown_files(folder))]


def markdown_files(folder: Path) -> Iterator[Path]:
    """Yield the Markdown files of a folder with documentation."""
    if folder.name in {"docs", "deploy", "flows", "tasks", "storage", "native", "benchmarks"}:
        yield from folder.rglob("*.md")
