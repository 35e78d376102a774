"""Explains compiler errors: the place in the user's source, the line, and what is expected there.

The sentences about the contract are the headers' own (contract.hpp, fields.hpp): the compiler prints them as they are,
with the member's name in front, which is looked up in the source. Nothing here understands templates.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 6
_ERROR = re.compile(r"^(?P<file>\S.*?):(?P<line>\d+):(?:\d+:)? (?P<fatal>fatal )?error: (?P<text>.*)$")
_LINKER = re.compile(r"(?:undefined (?:reference|symbol)|cannot find -l|multiple definition|error: ).*")
_PLACE = re.compile(r"^(?P<file>\S.*?):(?P<line>\d+):\d+: (?:  (?:recursively )?required|note: in instantiation)")
_CONTRACT = re.compile(r"penstock: (?P<member>\w+): (?P<sentence>.*?)\"?$")
_NAME = r"(?:\w+::|\{anonymous\}::|\(anonymous namespace\)::)*(?P<name>\w+)"
_ENVIRONMENT = re.compile(r"check_environment(?:\(\) \[with E = |<)" + _NAME)
_NO_RESULT = " [-Werror=return-type]"
_ENDS = "; end it by a return, or by std::abort() where it never comes, as behind a switch over all values"
_TWO_EXPORTS = re.compile(r"redefinition of .*penstock_library\b")
_FIELD_TYPE = re.compile(r"penstock::Field<[^,]+, (?P<type>.+?)>'")


@dataclass(frozen=True, slots=True)
class Problem:
    """One error: a place in the user's source if it is known, and a sentence."""

    file: Path | None
    line: int
    text: str


def explain(output: str, sources: Sequence[Path], log: Path) -> str:
    """Return the first errors of a compiler's output, each with its place and line in `sources` (main one first)."""
    problems = _problems(output, sources)
    # Errors in the source's own text come first: the contract may fail only because of them.
    own = [problem for problem in problems if problem.text and problem.file is not None]
    shown = (own or problems)[:_SHOWN]
    lines = [f"{sources[0].name} does not compile:"]
    for problem in shown:
        if problem.file is None:
            lines.append(f"  {problem.text}")
            continue
        lines.append(f"  {problem.file.name}:{problem.line}: {problem.text}")
        text = problem.file.read_text(encoding="utf-8", errors="replace").splitlines()
        if 0 < problem.line <= len(text):
            lines.append(f"    {problem.line} | {text[problem.line - 1].strip()}")
    if len(problems) > len(shown):
        lines.append(f"  and {len(problems) - len(shown)} more")
    lines.append(f"full output of the compiler: {log}")
    return "\n".join(lines)


def _problems(output: str, sources: Sequence[Path]) -> list[Problem]:
    by_name = {os.path.realpath(source): source for source in sources}
    lines = output.splitlines()
    problems: list[Problem] = []
    place: tuple[Path, int] | None = None
    environment: str | None = None
    field_type: str | None = None
    for index, line in enumerate(lines):
        error = _ERROR.match(line)
        # GCC says before its errors where they come from, Clang after each.
        context = [line] if error is None else _notes(lines, index + 1)
        for said in context:
            if found := _ENVIRONMENT.search(said):
                environment = found["name"]
            if found := _FIELD_TYPE.search(said):
                field_type = found["type"]
            if (found := _PLACE.match(said)) and (file := by_name.get(os.path.realpath(found["file"]))):
                place = file, int(found["line"])
        if error is None:
            continue
        contract = _CONTRACT.search(error["text"])
        if contract is not None:
            text = f"{contract['member']}: {contract['sentence']}"
            if contract["member"] == "PENSTOCK_FIELDS":
                where, text = place, f"{text} (found: {field_type})"
            else:
                where = _member(sources, environment, contract["member"])
        elif _TWO_EXPORTS.search(error["text"]):
            where, text = (
                place,
                "PENSTOCK_LIBRARY stands here twice; one line lists all: PENSTOCK_LIBRARY(First, Second)",
            )
        elif file := by_name.get(os.path.realpath(error["file"])) or _file_of(error):
            where, text = (file, int(error["line"])), error["text"].replace(_NO_RESULT, _ENDS)
        else:
            where, text = place, error["text"]
            if any(problem.text for problem in problems):
                continue  # a consequence, in terms of the pool's internals
        problem = Problem(where[0] if where else None, where[1] if where else 0, text)
        if problem not in problems:
            problems.append(problem)
    if not problems:
        texts = dict.fromkeys(match[0].strip() for match in map(_LINKER.search, lines) if match)
        problems = [Problem(None, 0, text) for text in texts] or [Problem(None, 0, line) for line in lines[-3:]]
    return problems


def _file_of(error: re.Match[str]) -> Path | None:
    """Return the file in which an include was not found, which may be one that no list of sources has yet."""
    file = Path(error["file"])
    return file if error["fatal"] and file.is_file() else None


def _notes(lines: Sequence[str], start: int) -> list[str]:
    """Clang's notes on the error before `start`, the innermost place last."""
    end = next((n for n in range(start, len(lines)) if _ERROR.match(lines[n])), len(lines))
    return [line for line in lines[start:end] if ": note: in instantiation" in line][::-1]


def _member(sources: Sequence[Path], environment: str | None, member: str) -> tuple[Path, int] | None:
    """Find a struct, or its member that a sentence is about."""
    for source in sources:
        lines = [
            re.sub(r"//.*", "", line) for line in source.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        start = next(
            (n for n, line in enumerate(lines) if re.search(rf"\b(?:struct|class)\s+{environment}\b", line)), None
        )
        if start is None:
            continue
        pattern = {"Config": r"struct\s+Config\b", "State": r"struct\s+State\b"}.get(member)
        if pattern is None:
            pattern = rf"\b{member}\s*\(" if member in {"reset", "step", "observe"} else rf"\b{member}\b\s*[{{=;]"
        indent = len(lines[start]) - len(lines[start].lstrip())
        closing = (n for n in range(start, len(lines)) if lines[n].startswith(" " * indent + "};"))
        end = start + 1 if "};" in lines[start] else next(closing, len(lines))
        return source, 1 + next((n for n in range(start, end) if re.search(pattern, lines[n])), start)
    return None
