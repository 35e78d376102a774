"""A preset's file is read whole, or named with what is wrong."""

from pathlib import Path

import pytest

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import load_preset


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_preset_is_refused(tmp_path: Path, text: str):
    """It would train what nobody has asked for, with every default."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.toml' is empty, expected tables such as \[environment\]"):
        load_preset(str(path))
