"""The fingerprint names what bytes depend on besides the configuration, and every change of it."""

from importlib.metadata import version

from penstock.storage.digest import canonical_json
from penstock.tasks.runtime.fingerprint import differences, fingerprint


def test_a_fingerprint_is_plain_and_stable():
    """It goes into `run.json`, and taken twice in one place it is the same."""
    found = fingerprint()
    assert found == fingerprint()
    assert found["torch"] == version("torch")
    assert found["penstock"] == version("penstock-rl")
    assert canonical_json(found)
    assert differences(found, fingerprint()) == []


def test_every_change_is_named():
    """Changed, gone and new, in one order always."""
    before = {"torch": "2.12.0", "numpy": "2.2.0", "gone": "1"}
    now = {"torch": "2.13.0", "numpy": "2.2.0", "new": "3"}
    assert differences(before, now) == ["gone 1 -> none", "new none -> 3", "torch 2.12.0 -> 2.13.0"]
