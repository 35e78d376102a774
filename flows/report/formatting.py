"""Formats numbers, times and digests for display."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_DIGEST = re.compile("([0-9a-f]{8})[0-9a-f]{24}")

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_bytes(count: float) -> str:
    """Format a size, such as `1.2 MB`."""
    for unit in _BYTE_UNITS:
        if count < 1000 or unit == _BYTE_UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """Format a duration: `0.25 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def format_number(value: float) -> str:
    """Format a number: `1,234,567`, or four significant digits."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e15 else f"{value:.4g}"


def format_span(first: int, last: int) -> str:
    """Format a range: `3` or `3 to 9`."""
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def format_time(text: object) -> str | None:
    """Format an ISO 8601 time as `2026-11-22 12:25 UTC`; other text is returned unchanged."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return str(text) if text else None


def format_digest(name: str) -> tuple[str, str]:
    """Return a name in short form (a digest's first eight digits, no folder, no ending), and in full."""
    return _DIGEST.sub(r"\1…", name.rpartition("/")[2].partition(".")[0]), name
