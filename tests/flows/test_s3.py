"""The whole loop over S3 servers."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from .conftest import BRIEF
from .stored import StoredRun, assert_same


def test_a_run_on_s3_is_resumed_elsewhere_to_the_bytes_of_a_local_one(bench, references, s3_server, s3_url):
    """Begun in a bucket and killed, copied to another place there and finished: as one in a folder that never moved."""
    bench.environment = {**bench.environment, **s3_server.environment}
    flow, run = bench.train("afar", BRIEF, store=s3_url), StoredRun(s3_url, "afar")
    run.wait_for_round(BRIEF.rounds + 1, flow)
    flow.kill()
    bench.penstock("copy", "afar", f"{s3_url}/moved", "--store", s3_url).succeed()
    bench.resume("afar", store=f"{s3_url}/moved").succeed()
    assert_same(StoredRun(f"{s3_url}/moved", "afar"), references.content(BRIEF))
    listed = bench.penstock("runs", "--store", f"{s3_url}/moved", "--json").succeed()
    assert '"afar"' in listed


@pytest.mark.skipif(find_spec("obstore") is None, reason="obstore is not installed; `make test` installs it")
def test_a_run_outlives_a_server_that_stops(bench, references, swift_server, swift_url):
    """Flow and workers are killed, then the server under the resumed run: the bytes are those of a quiet local run.

    The run began through another client than it goes on with. Whether it waits until the server is back or ends with
    an error depends on how long that takes; one that ended goes on as any other.
    """
    bench.environment = {**bench.environment, **swift_server.environment}
    run = StoredRun(swift_url, "afar")
    other = swift_url.replace("s3", "s3+obstore", 1)
    flow = bench.penstock("train", bench.preset(BRIEF), "--name", "afar", "--store", other)
    run.wait_for_round(1, flow)
    flow.kill_group()
    resume = ["resume", "afar", "--store", swift_url, "--lease-seconds", "6"]
    flow = bench.penstock(*resume)
    run.wait_for_commit(0, flow)
    swift_server.stop()
    swift_server.start()
    if flow.wait() != 0:
        assert swift_url in flow.errors
        bench.penstock(*resume).succeed()
    assert_same(run, references.content(BRIEF))
