"""Writes docs/benchmarks.md, its pictures, and the board's figures in other pages, from the board's stored results.

Other pages mark the place of a figure: `<!-- board:NAME -->` before and `<!-- /board -->` behind it, within a line or
around lines. `FRAGMENTS` and `PASSAGES` have the names.

    python -m benchmarks.board.page             # write
    python -m benchmarks.board.page --check     # compare, and name what differs
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.board.passages import PASSAGES
from benchmarks.board.plots import NOBODYS, OURS, THEIRS, Bar, bars
from benchmarks.board.workloads import ALONE, RANDOM, SOLVERS, WORKLOADS, Workload
from benchmarks.returns.page import returns_part
from benchmarks.support.programs import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PAGE = "docs/benchmarks.md"
MARKED = ("README.md", "docs/comparison.md")
"""Pages with figures of the board."""
MARK = re.compile(r"(<!-- board:([\w-]+) -->)(.*?)(<!-- /board -->)", re.DOTALL)

HEAD = """# Benchmarks

`make board` writes this page; nothing here is written by hand. Each table of rates is of one machine and one command:
contenders took turns, round by round, each alone on the machine with its two cores. A peer has one or two torch
threads, and stable-baselines3 its environments in its own process or in one each: what a run of each beforehand showed
to be nearly the fastest was measured in every round, and the fastest counts. Penstock acts in one process and learns in
another, with one thread each, which work at the same time at lag 1 (the preset of DQN does both in one). Rates are env
steps/s of the whole loop, updates included, without start and evaluations: the median of the rounds, and their range.
Ratios above 1 are wins of Penstock, those below 1 its losses, computed round by round.

*Equal*: the same network, environments, rows, epochs and minibatches, and for off-policy algorithms the same updates.
*RL zoo* and *own*: what the peer publishes for this environment; where it computes another amount for each step, the
rate says what a user of that peer gets, and no ratio says who is faster. In pictures, bars are medians, dots are
rounds, and faint bars are other work.
"""


BEFORE = "Measured before peers were tried with more: each was one process with one torch thread."


@dataclass
class Board:
    """The newest stored results of each part, with the files that they are from."""

    workloads: dict[str, tuple[dict[str, Any], Path, dict[str, Any]]] = field(default_factory=dict)
    """By name: the part, its file, and everything in the file."""
    solving: tuple[dict[str, Any], Path, dict[str, Any]] | None = None

    @classmethod
    def stored(cls, folder: Path) -> Board:
        """Read the results of a folder."""
        results = [(json.loads(path.read_text(encoding="utf-8")), path) for path in folder.glob("*-board*.json")]
        board = cls()
        for result, path in sorted(results, key=lambda item: (item[0].get("finished_at", item[0]["date"]), item[1])):
            board.workloads |= {name: (found, path, result) for name, found in result["workloads"].items()}
            if "solving" in result:
                board.solving = result["solving"], path, result
        return board

    def rates(self, name: str) -> dict[str, list[float]]:
        """Return a workload's env steps/s by title and round."""
        rates: dict[str, list[float]] = self.workloads[name][0]["rates"]
        return rates

    def ratio(self, name: str, ours: str, theirs: str) -> float:
        """Return the median over the rounds of how much faster the first is than the second."""
        rates = self.rates(name)
        return median(a / b for a, b in zip(rates[ours], rates[theirs], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the checkout")
    args = parser.parse_args()
    if not args.check:
        write_pages(args.root)
        return
    stale = [name for name, text in pages(args.root) if not is_written(args.root / name, text)]
    if stale:
        sys.exit(f"{', '.join(stale)}: not what the stored results say; run python -m benchmarks.board.page")


def is_written(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def write_pages(root: Path = ROOT) -> None:
    """Write every page and picture that shows a figure of the board."""
    for name, text in pages(root):
        path = root / name
        if not is_written(path, text):
            path.write_text(text, encoding="utf-8")
            print(name, flush=True)


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page and picture, from the results stored below a checkout's root."""
    board = Board.stored(root / "benchmarks" / "results")
    sections = [HEAD]
    for name, workload in WORKLOADS.items():
        if name in board.workloads:
            yield picture_name(name), rates_picture(workload, board.rates(name))
            sections.append(workload_section(name, workload, board))
    if board.solving:
        yield picture_name("solving"), solving_picture(board.solving[0])
        sections.append(solving_section(board.solving))
    for picture, text in returns_part(root / "benchmarks" / "results" / "returns"):
        if picture is None:
            sections.append(text)
        else:
            yield picture, text
    yield PAGE, "\n".join(sections)
    for name in MARKED:
        yield name, filled((root / name).read_text(encoding="utf-8"), board, root / "benchmarks" / "results")


def filled(text: str, board: Board, results: Path) -> str:
    """Return a page's text with its figures in their places: the board's, and those of other results."""

    def figure(name: str) -> str:
        return FRAGMENTS[name](board) if name in FRAGMENTS else PASSAGES[name](results)

    return MARK.sub(lambda found: f"{found[1]}{figure(found[2])}{found[4]}", text)


def picture_name(name: str) -> str:
    return f"docs/images/board-{name}.svg"


def is_ours(title: str) -> bool:
    return title.startswith("Penstock")


def colour_of(title: str) -> str:
    return OURS if is_ours(title) else NOBODYS if title in {ALONE, RANDOM} else THEIRS


def rates_picture(workload: Workload, rates: Mapping[str, Sequence[float]]) -> str:
    rows = [
        Bar(title, colour_of(title), values, f"{median(values):,.0f}", faint=is_other(workload, title))
        for title, values in sorted(rates.items(), key=lambda item: -median(item[1]))
    ]
    return bars(rows, "env steps/s", f"{workload.title}: env steps/s")


def is_other(workload: Workload, title: str) -> bool:
    return not (is_ours(title) or title == ALONE or title in workload.equal)


def workload_section(name: str, workload: Workload, board: Board) -> str:
    """Return a workload's section: at equal settings, with ratios; at the peers' own, without; the goal; the source."""
    found, path, result = board.workloads[name]
    rates = board.rates(name)
    by_rate = sorted(rates, key=lambda title: -median(rates[title]))
    ours = [title for title in rates if is_ours(title)]
    lines = [f"## {found['title']}", "", f"![{found['title']}](images/board-{name}.svg)", ""]
    lines += [f"| at equal settings | env steps/s | {' | '.join(f'{title} / this' for title in ours)} |"]
    lines.append("|---" * (2 + len(ours)) + "|")
    for title in by_rate:
        if is_other(workload, title):
            continue
        shares = [
            "" if title == mine else spread([a / b for a, b in zip(rates[mine], rates[title], strict=True)], ".2f")
            for mine in ours
        ]
        lines.append(f"| {title} | {spread(rates[title])} | {' | '.join(shares)} |")
    others = [title for title in by_rate if is_other(workload, title)]
    if others:
        lines += ["", "| at the settings that it publishes: other work | env steps/s |", "|---|---|"]
        lines += [f"| {title} | {spread(rates[title])} |" for title in others]
    best, reached = judged(name, workload, board)
    whom = best if workload.against else f"the best peer at equal settings, {best}"
    verdict = "reached" if reached >= workload.goal else "**missed**"
    goal = f"Goal: {workload.judged}, at {workload.goal:g} times {whom}. Measured: {reached:.2f}, {verdict}."
    uses = uses_of_cores(found) or ("" if "torch threads" in workload.note else BEFORE)
    about = [workload.note, goal, uses, versions_of_peers(found, result)]
    return "\n".join(
        [*lines, "", *(line for text in about if text for line in (text, "")), *source(found, path, result)]
    )


def uses_of_cores(found: Mapping[str, Any]) -> str:
    """Return with what each peer was the fastest, of the ways in which it can use two cores."""
    by_use: dict[str, list[str]] = {}
    for title, cores in found.get("cores", {}).items():
        by_use.setdefault(cores, []).append(title.replace(",", ""))
    parts = [f"{cores}: {', '.join(titles)}" for cores, titles in by_use.items()]
    return f"Peers were the fastest with {'; with '.join(parts)}." if parts else ""


def versions_of_peers(found: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return the peers' packages that the source does not name, or of which they have another version."""
    ours, theirs = result["machine"]["versions"], dict[str, str]()
    for title, ran in found.get("ran", {}).items():
        if not is_ours(title) and title != ALONE and "machine" in ran:
            other = {name: number for name, number in ran["machine"]["versions"].items() if ours.get(name) != number}
            if other:
                text = ", ".join(f"{name} {number}" for name, number in other.items())
                theirs[title.partition(",")[0]] = text
    return f"Of peers: {'; '.join(f'{name} with {text}' for name, text in theirs.items())}." if theirs else ""


def source(found: Mapping[str, Any], path: Path, result: Mapping[str, Any]) -> list[str]:
    """Return the lines that say where a part's figures are from."""
    seeds = (
        f"Seeds by round: {', '.join(map(str, found['seeds']))}." if "seeds" in found else "One seed for all rounds."
    )
    about = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return [
        f"{result['date']}, `{result['command']}`, {about['processor']}, {about['cores']} cores, {versions}.",
        f"{seeds} Every round: [{path.name}](../benchmarks/results/{path.name}).",
        "",
    ]


def solving_section(solving: tuple[dict[str, Any], Path, dict[str, Any]]) -> str:
    """Return the section of seconds until solved: the same table for wins and losses."""
    found, path, result = solving
    rule, baseline = found["rule"], found["baselines"][RANDOM]
    threads = "the faster of one and two torch threads" if "torch_threads" in found else "one torch thread"
    lines = [
        f"## {found['title']}",
        "",
        f"Solved: a mean return of at least {rule['mean_return']:g} over {rule['episodes']} greedy episodes on seeds",
        "that neither training nor an earlier evaluation used, the same rule for all. Seconds are from the command to",
        "that evaluation's end: the start of Python, all imports and servers, and evaluations count. Penstock starts a",
        "Prefect server of its own each time, and is evaluated at the end of a stage of ten rounds; peers after every",
        f"fourth round, CleanRL for at most {rule['limit_seconds']:g} s, with {threads}.",
        "*Equal*: the preset's settings with a network of [64, 64], which CleanRL has.",
        "",
        f"![{found['title']}](images/board-solving.svg)",
    ]
    for title, equal in (("at equal settings", True), ("at the settings that each publishes", False)):
        lines += ["", f"| {title} | seconds | env steps | solved |", "|---|---|---|---|"]
        for name in by_seconds(found):
            if SOLVERS[name].equal == equal:
                seconds = found["seconds"][name]
                count = f"{len(known(seconds))} of {len(seconds)}"
                lines.append(f"| {name} | {seconds_text(found, name)} | {spread(found['env_steps'][name])} | {count} |")
        if equal:
            lines.append(f"| {RANDOM}, which cost nothing | never: a mean return of {baseline:.1f} | | |")
    return "\n".join([*lines, "", *source(found, path, result)])


def solving_picture(found: Mapping[str, Any]) -> str:
    rows = [
        Bar(
            name,
            colour_of(name),
            known(found["seconds"][name]),
            seconds_text(found, name).partition(" (")[0],
            faint=not SOLVERS[name].equal,
        )
        for name in by_seconds(found)
    ]
    return bars(rows, "seconds from the command until solved", f"{found['title']}; less is better")


def by_seconds(found: Mapping[str, Any]) -> list[str]:
    """Return contenders, the fastest first; one that did not solve it in every round comes behind those that did."""
    return sorted(found["seconds"], key=lambda name: median(never_last(found["seconds"][name])))


def never_last(seconds: Sequence[float | None]) -> list[float]:
    return [float("inf") if value is None else value for value in seconds]


def known(seconds: Sequence[float | None]) -> list[float]:
    return [value for value in seconds if value is not None]


def seconds_text(found: Mapping[str, Any], name: str) -> str:
    """Return the median and range; rounds without a solution count as longer than all others."""
    seconds = found["seconds"][name]
    if not known(seconds):
        return "not solved"
    middle, longest = median(never_last(seconds)), max(never_last(seconds))
    texts = ["not solved" if value == float("inf") else f"{value:.1f}" for value in (middle, longest)]
    return f"{texts[0]} ({min(known(seconds)):.1f} to {texts[1]})"


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Return the median and the range."""
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def thousands(board: Board, name: str, title: str) -> str:
    """Return a median rate in thousands, to three digits."""
    rate = median(board.rates(name)[title]) / 1e3
    return f"{rate:.0f} k" if rate >= 100 else f"{rate:.1f} k"


def ppo_rates(board: Board) -> str:
    return (
        f"{thousands(board, 'ppo', 'Penstock, lag 1')} at lag 1, {thousands(board, 'ppo', 'Penstock, lag 0')} at lag 0"
    )


def ppo_peers(board: Board) -> str:
    sb3, cleanrl = (thousands(board, "ppo", title) for title in ("SB3, equal", "CleanRL, equal"))
    return f"stable-baselines3 {sb3}, CleanRL {cleanrl}"


def ppo_conditions(board: Board) -> str:
    share = board.ratio("ppo", "Penstock, lag 1", ALONE)
    return f"at lag 1 it is {share:.2f} of acting and updating in one process that stores nothing"


def missed_goals(board: Board) -> str:
    """Return a sentence with every goal of the board that was missed."""
    missed = []
    for name, workload in WORKLOADS.items():
        if name in board.workloads:
            best, reached = judged(name, workload, board)
            if reached < workload.goal:
                called = workload.title.partition(":")[0]
                missed.append(f"{called}, {reached:.2f} times {best.partition(',')[0]} (goal {workload.goal:g})")
    return f"Missed: {'; '.join(missed)}" if missed else "No goal of the board was missed"


def judged(name: str, workload: Workload, board: Board) -> tuple[str, float]:
    """Return the peer that a workload's goal is for, and the ratio that was reached."""
    best = workload.against or max(workload.equal, key=lambda title: median(board.rates(name)[title]))
    return best, board.ratio(name, workload.judged, best)


def ratio_range(board: Board) -> str:
    """Return the smallest ratio to a peer at equal settings and whose it is, and the largest one; over both lags."""
    ratios = {
        (name, ours, theirs): board.ratio(name, ours, theirs)
        for name in board.workloads
        for ours in ("Penstock, lag 0", "Penstock, lag 1")
        for theirs in WORKLOADS[name].equal
    }
    name, ours, theirs = min(ratios, key=lambda each: ratios[each])
    called = WORKLOADS[name].title.partition(":")[0]
    least = f"{ratios[name, ours, theirs]:.2f} ({called}, {ours.partition(', ')[2]}, {theirs.partition(',')[0]})"
    return f"{least} to {max(ratios.values()):.1f}"


def pong_ratios(board: Board) -> str:
    """Return how fast Pong is learned next to the fastest peer at equal settings, at both lags."""
    best, _ = judged("pong", WORKLOADS["pong"], board)
    late, level = (board.ratio("pong", f"Penstock, lag {lag}", best) for lag in (1, 0))
    return f"{late:.2f} times as fast as {best.partition(',')[0]} at lag 1, and {level:.2f} times at lag 0"


def solved_seconds(board: Board) -> str:
    """Return who solves CartPole after how many seconds, at equal settings; nothing as long as it was not measured."""
    if not board.solving:
        return ""
    found = board.solving[0]
    return "; ".join(f"{name} {seconds_text(found, name)}" for name in by_seconds(found) if SOLVERS[name].equal)


FRAGMENTS: dict[str, Callable[[Board], str]] = {
    "ppo-rates": ppo_rates,
    "ppo-peers": ppo_peers,
    "ppo-conditions": ppo_conditions,
    "missed-goals": missed_goals,
    "ratio-range": ratio_range,
    "pong-ratios": pong_ratios,
    "solved-seconds": solved_seconds,
}


if __name__ == "__main__":
    main()
