"""A run that can't begin is refused before anything is announced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.flows.api.drive import run_here
from penstock.flows.display.console import Panel
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import build_config, load_preset

if TYPE_CHECKING:
    from pathlib import Path


class Notes(Panel):
    """Keeps what is announced."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        """Keep a note."""
        self.said.append(text)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("PREFECT_HOME", "Prefect's folder .* can't be used .*; set PREFECT_HOME"),
        ("PENSTOCK_CONFIG_DIR", "prefect-auth' can't be read .*; set PENSTOCK_CONFIG_DIR"),
    ],
)
def test_a_folder_that_can_not_be_made_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, said: str
):
    """No line says that anything starts."""
    (tmp_path / "file").touch()
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING", raising=False)
    for name, place in (("PREFECT_HOME", "prefect"), ("PENSTOCK_CONFIG_DIR", "config"), (variable, "file/below")):
        monkeypatch.setenv(name, str(tmp_path / place))
    panel = Notes()
    config = build_config(load_preset("cartpole") | {"store": str(tmp_path / "runs")})
    with pytest.raises(ConfigError, match=said):
        run_here(config, "refuse", panel, before_start=lambda: panel.note("it starts"))
    assert panel.said == []
