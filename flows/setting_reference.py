"""The reference of every setting as Markdown: `docs/settings.md` is what this makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.setting_list import Setting, settings_of
from tasks.algorithm_settings.own import OWN
from tasks.config import TrainConfig, choices_of
from tasks.replay_config import ReplayConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tasks.config import RunConfig

_HEAD = """\
# Settings

Every setting of a run, as `penstock settings --markdown` prints them; that command makes this page. A setting is an
option by its full name, or by its last part where that is unique (`--schedule.lag 1`, `--lag 1`), a line of a preset
in TOML, and a field of the form in Prefect's UI. An empty default means that there is no value.

What a run was given is in its `run.json`. When a run goes on, only `cluster` may change, and in
`placement` the numbers of act and env tasks.
"""
_REPLAY = """\
## Replays

A replay (`penstock replay`) has the settings above but for `shards`, and the algorithms below in place of those above.
It acts nothing, so `schedule.round_steps` and `schedule.lag` must be left out. Where its defaults are others, and what
it has besides:
"""


def reference() -> str:
    """The whole page."""
    train, replay = settings_of(TrainConfig), settings_of(ReplayConfig)
    known = {(setting.path, setting.algorithm): setting.default for setting in train}
    own = [one for one in replay if known.get((one.path, one.algorithm), one) != one.default and one.path != "plan"]
    parts = [_HEAD, *_tables(train, _tables_of(TrainConfig)), _REPLAY]
    parts += [text.replace("## ", "### ") for text in _tables(own, _tables_of(ReplayConfig))]
    return "\n".join(parts)


def _tables_of(kind: type[RunConfig]) -> dict[str, str]:
    """What each table of settings is about, by its path; for an algorithm's its own words."""
    found: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        for algorithm, member in choices_of(field.annotation).items():
            found[f"{name} {algorithm}"] = _first_line(member)
        if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
            found[name] = _first_line(field.annotation)
    return found


def _first_line(model: Any) -> str:
    return str(model.__doc__ or "").strip().partition("\n")[0]


def _tables(settings: Iterable[Setting], about: dict[str, str]) -> Iterator[str]:
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        table = setting.path.partition(".")[0] if "." in setting.path else ""
        groups.setdefault(f"{table} {setting.algorithm}".strip(), []).append(setting)
    for group, found in groups.items():
        table, _, algorithm = group.partition(" ")
        title = f"{table}: {'your own' if algorithm == OWN else algorithm}" if algorithm else table or "The run"
        lines = [f"## {title}", ""]
        if about.get(group):
            lines += [about[group], ""]
        lines += ["| setting | takes | default | meaning |", "|---|---|---|---|"]
        for one in found:
            default = f"`{_cell(one.told_default)}`" if one.told_default else ""
            lines.append(f"| `{one.path}` | {_cell(one.kind)} | {default} | {_cell(one.meaning)} |")
        yield "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
