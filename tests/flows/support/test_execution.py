"""A flow run that is to resume a finished run is a success where nobody waits for it."""

import pytest
from prefect.logging import disable_run_logger

from penstock.flows.support.execution import execute_run
from penstock.storage.errors import RunExistsError, RunFinishedError

from ...support.stored.stored_points import small_config, store_run


@pytest.mark.parametrize(("variable", "value"), [("FLOW_RUN__RUN_COUNT", "2"), ("DEPLOYMENT__ID", "0" * 32)])
def test_a_finished_run_is_a_success_for_retries_and_deployments(tmp_path, monkeypatch, variable, value):
    """A process that died after the last commit is retried, and a schedule resumes whatever its runs have done."""
    run = store_run(small_config(tmp_path), "done", [1.0, 2.0])
    config = small_config(tmp_path, name="done")
    with disable_run_logger():
        with pytest.raises(RunFinishedError):  # a command says so itself
            execute_run(config, "resume")
        monkeypatch.setenv(f"PREFECT__RUNTIME__{variable}", value)
        result = execute_run(config, "resume")
        if variable == "DEPLOYMENT__ID":  # which may have to begin a run of its own; a retry never has
            with pytest.raises(RunExistsError):
                execute_run(config, "refuse")
    newest = run.log.newest()
    assert newest is not None
    assert (result["run"], result["finished"]) == ("done", newest.finished)
