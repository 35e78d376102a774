"""A server counts its answers by status, those that it did not foresee too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.tasks.inference.http_server import PolicyServer
from penstock.tasks.inference.policy import Policy

from .support import policy_of
from .test_http_server import serving

if TYPE_CHECKING:
    import pytest

    from ..conftest import MakeContext


def test_answers_are_counted_by_status_and_failures_are_among_them(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
):
    """A defect of a policy is a 500, which has no time; requests after it are answered."""

    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    with serving(PolicyServer(policy_of(make_context()))) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Policy, "step", fail)
            # The server closes a connection after such an answer.
            failed = client.post("/act", json={"observation": [0, 0, 0, 0]}, headers={"connection": "close"})
        assert failed.status_code == 500
        assert client.post("/act", content=b"{").status_code == 400
        assert client.post("/act", json={"observation": [0, 0, 0, 0]}).status_code == 200
        metrics = client.get("/metrics").text.splitlines()
    counts = {line for line in metrics if line.startswith("penstock_policy_requests_total")}
    assert counts == {f'penstock_policy_requests_total{{status="{status}"}} 1.0' for status in (200, 400, 500)}
    assert "penstock_policy_request_seconds_count 2.0" in metrics
