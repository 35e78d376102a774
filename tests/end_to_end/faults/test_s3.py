"""Whole runs on S3 servers."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ...support.stored.stored_run import StoredRun, assert_same
from ..conftest import BRIEF


def test_a_run_on_s3_is_resumed_elsewhere_to_the_bytes_of_a_local_one(bench, references, s3_server, s3_url):
    """A run that is killed in a bucket, copied within it and resumed equals one in a folder that was never moved."""
    bench.environment = {**bench.environment, **s3_server.environment}
    flow, run = bench.train("afar", BRIEF, store=s3_url), StoredRun(s3_url, "afar")
    run.wait_for_round(BRIEF.rounds + 1, flow)
    flow.kill()
    bench.penstock("copy", "afar", f"{s3_url}/moved", "--store", s3_url).succeed()
    bench.resume("afar", store=f"{s3_url}/moved").succeed()
    assert_same(StoredRun(f"{s3_url}/moved", "afar"), references.content(BRIEF))
    listed = bench.penstock("runs", "--store", f"{s3_url}/moved", "--json").succeed()
    assert '"afar"' in listed


@pytest.mark.slow
@pytest.mark.skipif(find_spec("obstore") is None, reason="obstore is not installed; `make test` installs it")
def test_a_run_survives_a_restart_of_its_s3_server(bench, references, swift_server, swift_url):
    """Flow and workers are killed, then the server of the resumed run: the bytes are those of an undisturbed local run.

    The run starts through one S3 client and resumes through another. Whether it waits for the server or ends with an
    error depends on how long the restart takes; a run that ended is resumed as any other.
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
