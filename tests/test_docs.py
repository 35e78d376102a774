"""The site names every page, and links lead to existing files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
