"""Docstrings begin with an imperative or with a subject and a verb: CONTRIBUTING.md has the rule."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import tasks

ROOT = Path(tasks.__path__[0]).resolve().parent
PLACES = ("flows", "native", "penstock", "storage", "tasks", "tests")
"""Folders of sources that keep the rule."""
HEADLESS = re.compile(r"\W*(what|who|whose|whoever|of|that|which|whether|whom|where|how)\b", re.IGNORECASE)


@pytest.mark.parametrize("place", PLACES)
def test_no_docstring_begins_with_a_relative_clause(place: str):
    """The first word of a docstring, and of a `///` comment in C++, names an action or a thing."""
    files = list(sources(ROOT / place))
    assert files, f"nothing to read in {place}"
    headless = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for path in files
        for line, text in (docstrings(path) if path.suffix == ".py" else doc_comments(path))
        if HEADLESS.match(text)
    ]
    assert not headless, "\n".join((f"{len(headless)} docstrings in {place} begin with a relative clause:", *headless))


def test_every_kind_of_docstring_is_read(tmp_path: Path):
    """Modules, classes, functions however deep, attributes, and the first line of each `///` comment are checked."""
    python = tmp_path / "module.py"
    python.write_text(
        '"""What."""\nx = 1\n"""Of it."""\n'
        'class A:\n    """Whose."""\n    y: int\n    """Which one."""\n'
        '    async def f(self):\n        """How.\n\n        More.\n        """\n'
        '        def g():\n            """`That`."""\n'
    )
    assert [line for line, text in docstrings(python) if HEADLESS.match(text)] == [1, 3, 5, 7, 9, 14]
    header = tmp_path / "header.hpp"
    header.write_text(
        "/// Where it is,\n/// of course.\nint x;  ///< Offset of x.\n  ///< whether y\n// what\n/// Returns.\n"
    )
    found = list(doc_comments(header))
    assert [line for line, _ in found] == [1, 3, 4, 6]
    assert [line for line, text in found if HEADLESS.match(text)] == [1, 4]


def sources(place: Path) -> Iterator[Path]:
    """Yield the Python and C++ files of a folder, or the file itself."""
    if place.is_file():
        yield place
    else:
        yield from sorted(path for ending in ("py", "hpp", "cpp") for path in place.rglob(f"*.{ending}"))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that stands alone: those of modules, classes, functions and attributes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [
        (node.lineno, node.value.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    yield from sorted(found)


def doc_comments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of the first line of each `///` comment, those behind code included."""
    continued = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        code, mark, text = line.partition("///")
        if mark and (code.strip() or text.startswith("<") or not continued):
            yield number, text.removeprefix("<").strip()
        continued = bool(mark)
