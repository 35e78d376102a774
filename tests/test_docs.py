"""What is told: every page is on the site, and links lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import tasks

ROOT = Path(tasks.__path__[0]).parent
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def named(nav: Any) -> Iterator[str]:
    """Pages of a table of contents, however deep."""
    if isinstance(nav, str):
        yield nav
    else:
        for below in nav.values() if isinstance(nav, dict) else nav:
            yield from named(below)


def test_the_site_names_every_page():
    """A page that nobody finds is none: `make docs` would refuse it, and takes longer to say so."""
    pages = list(named(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(pages) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))


def test_links_lead_to_files():
    """From every Markdown file that is told to people, to pages, code, results and pictures."""
    sources = [*ROOT.glob("*.md"), *(path for folder in ROOT.iterdir() for path in told(folder))]
    assert len(sources) > 20
    broken = [
        f"{source.relative_to(ROOT)} -> {link}"
        for source in sources
        for link in LINK.findall(source.read_text(encoding="utf-8"))
        if "://" not in link and not (source.parent / link).exists()
    ]
    assert broken == []


def told(folder: Path) -> Iterator[Path]:
    """Markdown files of a folder of ours."""
    if folder.name in {"docs", "deploy", "flows", "tasks", "storage", "native", "benchmarks"}:
        yield from folder.rglob("*.md")
