"""A run that starts with the parameters of another one, as a user starts it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ...support.stored.stored_run import StoredRun, assert_same
from ..conftest import BRIEF
from .equality_runs import ALONE, ANY, POLICIES, Small, assert_near, parameters

if TYPE_CHECKING:
    from ..conftest import Bench, References


@pytest.mark.slow
def test_a_warm_run_outlives_its_source_and_its_flow(bench: Bench, references: References):
    """Killed in its first stage, and resumed when the source is gone, it ends with the bytes of one that never was."""
    folder = Path(bench.store) / "source"
    shutil.copytree(Path(references.run(BRIEF).url) / references.run(BRIEF).name, folder)
    bench.train("undisturbed", BRIEF, "--init-from", "source").succeed()
    flow, run = bench.train("killed", BRIEF, "--init-from", str(folder)), bench.run("killed")
    run.wait_for_round(2, flow)
    flow.kill()
    shutil.rmtree(folder)
    bench.resume("killed").succeed()
    expected = bench.run("undisturbed").content()
    assert_same(run, expected)
    cold = references.content(BRIEF)
    assert set(expected) & set(cold) == {name for name in cold if name.startswith("commits/")}, "nothing was learned"
    bench.penstock("verify", "killed", "--store", bench.store).succeed()
    bench.penstock("fork", "killed", "forked", "--from-stage", "0", "--store", bench.store).succeed()
    bench.resume("forked").succeed()
    assert_same(bench.run("forked"), expected)


@pytest.mark.slow
def test_a_run_on_s3_starts_with_a_run_on_s3(bench: Bench, references: References, s3_server, s3_url):
    """In a bucket or in a folder, and killed or not, it ends with the bytes of one whose source is in a folder."""
    source = references.run(BRIEF)
    bench.environment = {**bench.environment, **s3_server.environment}
    bench.train("local", BRIEF, "--init-from", f"{source.url}/{source.name}").succeed()
    expected = bench.run("local").content()
    bench.penstock("copy", source.name, s3_url, "--store", source.url).succeed()
    bench.train("local-from-s3", BRIEF, "--init-from", f"{s3_url}/{source.name}").succeed()
    assert_same(bench.run("local-from-s3"), expected)

    run = StoredRun(s3_url, "warm")
    flow = bench.train(run.name, BRIEF, "--init-from", f"{s3_url}/{source.name}@newest", store=s3_url)
    run.wait_for_round(2, flow)
    flow.kill()
    bench.resume(run.name, store=s3_url).succeed()
    assert_same(run, expected)
    bench.penstock("verify", run.name, "--store", s3_url).succeed()
    bench.train("lost", BRIEF, "--init-from", f"{s3_url}/nothing", store=s3_url).refuse("nothing")


@pytest.mark.slow
def test_mismatches_are_refused_before_anything_starts(bench: Bench, references: References):
    """Every tensor that does not fit is a line, and no folder is made."""
    source = references.run(BRIEF)
    where = f"{source.url}/{source.name}"
    bench.train("warm", BRIEF, "--init-from", where, "--algorithm.hidden", "[16]").refuse(
        "policy/0.weight: found float32 [8, 4], expected float32 [16, 4]", "value/1.weight: found float32 [1, 8]"
    )
    bench.train("warm", BRIEF, "--init-from", f"{where}@last").refuse("'last'", "newest")
    bench.train("warm", BRIEF, "--init-from", f"{where}@99").refuse("no version 99")
    assert not bench.run("warm").folder.exists()


@pytest.mark.parametrize(
    "policy", [pytest.param(name, marks=pytest.mark.slow) for name in ANY if name not in (ALONE, "gpu_only")]
)
def test_every_policy_starts_with_the_same_parameters(policy_runs, policy_bench: Bench, policy: str):
    """Parameters and normalisers agree with those of one learner after every stage."""
    source = policy_runs.get("ppo", ALONE)
    options = ("--init-from", f"{source.url}/{source.name}@best")
    for name, each in (("alone", ALONE), ("other", policy)):
        policy_bench.train(name, Small(), "--policy", each, *POLICIES[each], *options).succeed()
    alone, other = policy_bench.run("alone"), policy_bench.run("other")
    for stage in range(2):
        assert_near(parameters(other, stage), parameters(alone, stage), f"stage {stage}")
    assert not np.array_equal(
        parameters(alone, 0)["params/policy/0.weight"], parameters(source, 0)["params/policy/0.weight"]
    )
