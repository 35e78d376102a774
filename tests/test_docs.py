"""The site names every page, and links lead to existing files."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock import tasks

ROOT = Path(tasks.__path__[0]).resolve().parent
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
ANCHOR = re.compile(r"\]\(([^)\s#:]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)


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


def test_the_board_wrote_its_figures():
    """docs/benchmarks.md, its pictures and the marked figures of other pages say what the stored results say."""
    checked = check_board(ROOT)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("page", "written", "altered"),
    [
        ("README.md", r"(<!-- board:ppo-rates -->)\d+", r"\g<1>999"),
        ("docs/comparison.md", r"(<!-- board:ratio-range -->)[\d.]+", r"\g<1>9.9"),
        ("docs/benchmarks.md", r"\*\*missed\*\*", "reached"),
        ("docs/images/board-ppo.svg", r'width="\d+\.\d"', 'width="400.0"'),
    ],
)
def test_a_figure_that_the_board_did_not_write_is_found(page: str, written: str, altered: str, tmp_path: Path):
    """A figure that somebody improved by hand is named by its page."""
    for name in ("README.md", "docs/comparison.md", "docs/benchmarks.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("docs/images", "benchmarks/results"):
        shutil.copytree(ROOT / name, tmp_path / name)
    text = (tmp_path / page).read_text(encoding="utf-8")
    changed = re.sub(written, altered, text, count=1)
    assert changed != text
    (tmp_path / page).write_text(changed, encoding="utf-8")
    assert check_board(tmp_path).stderr.startswith(f"{page}: not what the stored results say")


def check_board(root: Path) -> subprocess.CompletedProcess[str]:
    """Compare the board's figures below a checkout's root with its results."""
    command = [sys.executable, ROOT / "benchmarks" / "board_page.py", "--check", "--root", root]
    return subprocess.run(command, capture_output=True, text=True, check=False)


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
