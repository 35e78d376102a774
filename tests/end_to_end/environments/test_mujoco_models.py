"""A run whose MuJoCo model is a file of one's own goes on with that file alone."""

from __future__ import annotations

import pytest

from penstock.native.pool.mujoco_library import available, model_path

from ...support.stored.stored_run import assert_whole
from ..conftest import Settings

SETTINGS = Settings(stages=2, rounds=12, tiles=2, act_tasks=1)


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="comes with penstock-rl[mujoco]")
def test_a_killed_run_is_resumed_with_its_own_model_alone(bench):
    """Another model is refused by its digest; with the file as it was, the run ends whole."""
    file = bench.folder / "mine.xml"
    model = model_path("inverted_pendulum.xml").read_text()
    file.write_text(model)
    options = ("--environment.id", "InvertedPendulum-v5", "--environment.settings.xml_file", str(file))
    flow, run = bench.train("killed", SETTINGS, *options), bench.run("killed")
    run.wait_for_round(SETTINGS.rounds + 3, flow)
    flow.kill()
    file.write_text(model.replace("<worldbody>", '<worldbody><geom size="0.01" pos="0 0 9"/>', 1))
    bench.resume("killed").refuse("mine.xml': found files with the digest", "with which the run was created")
    file.write_text(model)
    bench.resume("killed").succeed()
    assert_whole(run, SETTINGS.all_rounds, SETTINGS.tiles, SETTINGS.rows)
