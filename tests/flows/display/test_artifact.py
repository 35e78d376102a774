"""Artifacts that change often: of what was offered, the newest is shown, and nothing is shown twice."""

import math
from uuid import uuid4

from penstock.flows.display.artifact import LiveArtifact


class Shown(LiveArtifact):
    """Keeps what would be sent to Prefect's server."""

    def __init__(self):
        super().__init__("table", "run-stages", "Stages", str(uuid4()))
        self.contents = []

    def show(self, data):
        self.contents.append(data)


def test_the_newest_offer_is_shown_once():
    """Older offers are not even made into text."""
    artifact = Shown()
    assert artifact.due_seconds() == math.inf
    artifact.refresh()
    assert artifact.contents == []
    artifact.offer(lambda: 1 / 0)
    artifact.offer(lambda: "second")
    assert artifact.due_seconds() == 0.0
    artifact.refresh()
    artifact.refresh()
    assert artifact.contents == ["second"]
    assert artifact.due_seconds() == math.inf


def test_an_offer_is_due_after_the_interval():
    """The last content of a run does not wait: `refresh` shows it at once."""
    artifact = Shown()
    artifact.offer(lambda: "first")
    artifact.refresh(3600.0)
    artifact.offer(lambda: "second")
    assert 0.0 < artifact.due_seconds() <= 3600.0
    artifact.refresh()
    assert artifact.contents == ["first", "second"]
