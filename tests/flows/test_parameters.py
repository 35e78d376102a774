"""Parameters of flows that nothing can be done with are refused before a flow run does anything."""

from typing import Any

import pytest
from prefect.exceptions import ParameterTypeError

from penstock.flows.evaluate import evaluate
from penstock.flows.verify import verify


@pytest.mark.parametrize("given", [{"episodes": 0}, {"key": -1}, {"key": 1 << 63}, {"idle_seconds": -1.0}])
def test_numbers_of_an_evaluation_have_bounds(given: dict[str, Any]):
    """By the names that the user gave, and not by a setting of the environment."""
    (name,) = given
    with pytest.raises(ParameterTypeError, match=name):
        evaluate.validate_parameters({"run": "any", **given})


def test_a_stage_to_verify_from_is_not_negative():
    """As in the command."""
    with pytest.raises(ParameterTypeError, match="since"):
        verify.validate_parameters({"since": -1})
