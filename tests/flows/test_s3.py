"""The whole loop over an S3 server."""

from __future__ import annotations

from .conftest import BRIEF
from .stored import StoredRun, assert_same


def test_a_run_on_s3_is_resumed_to_the_bytes_of_a_local_one(bench, references, s3_server, s3_url):
    """A run in a bucket, whose flow was killed, holds the same bytes as one in a folder that nothing disturbed."""
    bench.environment = {**bench.environment, **s3_server.environment}
    flow, run = bench.train("afar", BRIEF, store=s3_url), StoredRun(s3_url, "afar")
    run.wait_for_round(BRIEF.rounds + 1, flow)
    flow.kill()
    bench.resume("afar", store=s3_url).succeed()
    assert_same(run, references.content(BRIEF))
    listed = bench.penstock("runs", "--store", s3_url, "--json").succeed()
    assert '"afar"' in listed
