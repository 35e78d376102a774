"""Adds to the site the repository files outside docs/ that its pages link to.

A Markdown file that is linked, such as a benchmark's results, becomes a page below `repository/`; of any other file the
name is shown. A link to a file that is not there ends a strict build.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from posixpath import normpath, relpath
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

_ROOT = Path(__file__).resolve().parent.parent
_BELOW = "repository/"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_log = logging.getLogger("mkdocs.hooks")


def on_files(files: Files, config: Any) -> Files:
    """Add every Markdown file of the repository that pages link to, and that those link to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for _, target, _ in _LINK.findall((_ROOT / page).read_text(encoding="utf-8")):
            found = _target(page, target)
            is_page = _is_outside(found) and found.endswith(".md") and (_ROOT / found).is_file()
            if is_page and files.get_file_from_path(_BELOW + found) is None:
                files.append(File.generated(config, _BELOW + found, abs_src_path=os.fspath(_ROOT / found)))
                waiting.append(found)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links where the site has what they mean."""
    at = page.file.src_uri
    here = at.removeprefix(_BELOW) if at.startswith(_BELOW) else f"docs/{at}"

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], _target(here, match[2]), match[3] or ""
        if not (_ROOT / target).exists():
            _log.warning("%s links to %s, which is not there", here, target)
        if _is_outside(target) and not target.endswith(".md"):
            return f"`{target}`" if text == Path(target).name else f"{text} (`{target}`)"
        place = _BELOW + target if _is_outside(target) else target.removeprefix("docs/")
        return f"[{text}]({relpath(place, Path(at).parent.as_posix())}{anchor})"

    return _LINK.sub(link, markdown)


def _target(page: str, link: str) -> str:
    """A link's file, from the repository's root."""
    return normpath(f"{Path(page).parent.as_posix()}/{link}")


def _is_outside(target: str) -> bool:
    return not target.startswith("docs/")
