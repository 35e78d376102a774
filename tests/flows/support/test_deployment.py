"""Settings that a deployment's flow run gets where its parameters leave them out."""

from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from penstock.flows.support.deployment import with_own_seed
from penstock.tasks.setup.config.run import TrainConfig


def seed_in(flow_run: FlowRun, config: TrainConfig) -> int:
    with FlowRunContext.model_construct(flow_run=flow_run):
        return with_own_seed(config).seed


@pytest.mark.parametrize("given", [TrainConfig(), TrainConfig(seed=1), TrainConfig(seed=7)])
def test_scheduled_flow_runs_have_seeds_of_their_own(given):
    """Each has another one, which a retry keeps; a seed that was set, the default's too, stays."""
    flow_runs = [FlowRun(id=uuid4(), flow_id=uuid4(), auto_scheduled=True) for _ in range(4)]
    seeds = [seed_in(flow_run, given) for flow_run in flow_runs]
    assert seeds == [seed_in(flow_run, given) for flow_run in flow_runs]
    if given.model_fields_set:
        assert set(seeds) == {given.seed}
    else:
        assert len(set(seeds)) == len(flow_runs)


def test_other_flow_runs_keep_the_seed():
    """One that a person starts, and a call without Prefect's server."""
    assert seed_in(FlowRun(id=uuid4(), flow_id=uuid4()), TrainConfig()) == TrainConfig().seed
    assert with_own_seed(TrainConfig()).seed == TrainConfig().seed
