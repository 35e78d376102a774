"""Secrets and consents are this user's alone: other users can neither read nor plant them."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.storage.errors import ConfigError
from penstock.storage.user_config import config_folder, read_private, user_secret, write_private


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_is_made_once_and_kept_private(folder):
    """Folder and file are readable by their owner alone, whatever the umask; nothing else is left."""
    before = os.umask(0)
    try:
        secret, path = user_secret("auth")
    finally:
        os.umask(before)
    assert path == folder / "auth"
    assert len(secret) >= 32
    assert (mode(folder), mode(path)) == (0o700, 0o600)
    assert user_secret("auth") == (secret, path)
    assert user_secret("other")[0] != secret
    assert sorted(path.name for path in folder.iterdir()) == ["auth", "other"]


def test_processes_that_start_at_once_share_a_secret(folder):
    """One of them makes it, all return it."""
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: user_secret("auth")[0], range(32)))
    assert len(found) == 1
    assert found == {(folder / "auth").read_text()}


def test_an_empty_secret_is_made_again(folder):
    """As a full disk or a power cut may leave it."""
    write_private(folder / "auth", b"")
    secret, _ = user_secret("auth")
    assert secret


def test_files_that_others_may_write_are_refused(folder, tmp_path):
    """Nor is a link followed; the error names the file."""
    write_private(folder / "trusted", b"mine")
    (folder / "trusted").chmod(0o666)
    with pytest.raises(ConfigError, match="trusted"):
        read_private(folder / "trusted")
    (tmp_path / "elsewhere").write_text("theirs")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="linked"):
        read_private(folder / "linked")
    assert read_private(folder / "absent") is None


def test_a_folder_that_others_may_write_is_refused(folder):
    """The error says what to do, and nothing is written."""
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="PENSTOCK_CONFIG_DIR"):
        user_secret("auth")
    assert not list(folder.iterdir())


def test_the_folder_is_the_users_unless_it_is_named(monkeypatch, tmp_path):
    """A variable, the desktop's standard, the home folder, in this order."""
    monkeypatch.setenv("PENSTOCK_CONFIG_DIR", str(tmp_path / "named"))
    assert config_folder() == tmp_path / "named"
    monkeypatch.delenv("PENSTOCK_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "desktop"))
    assert config_folder() == tmp_path / "desktop" / "penstock"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert config_folder() == Path(tmp_path / "home" / ".config" / "penstock")
