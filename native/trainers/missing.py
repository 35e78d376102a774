"""What is said when a trainer is not installed."""

from __future__ import annotations


def missing(trainer: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error to raise in place of `error`, which an import for `trainer` met."""
    return ModuleNotFoundError(
        f"this adapter needs {trainer}, and importing it found no module {error.name!r}; "
        "install it with: pip install 'penstock[trainers]'",
        name=error.name,
    )
