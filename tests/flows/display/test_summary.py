"""Summary lines of stages and runs."""

import pytest

from penstock.flows.display.summary import outcome_line, round_return


@pytest.mark.parametrize(
    ("value", "rounded"), [(493.5499, 493.5), (-80.44, -80.4), (10.04, 10.0), (-1.11298, -1.113), (9.87654, 9.877)]
)
def test_small_returns_keep_the_digits_that_matter(value: float, rounded: float):
    """Costs of placements differ in the second decimal, returns of CartPole in whole numbers."""
    assert round_return(value) == rounded
    evaluation = {"mean_return": value, "episodes": 3}
    result = {"evaluation": evaluation, "env_steps": 1000, "stages": 2, "finished": None}
    assert outcome_line(result) == (
        f"mean return {rounded} over 3 episodes after 1,000 environment steps, 2 stages (not finished)"
    )
