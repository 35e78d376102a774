"""The window of an off-policy plan: the newest whole rounds, drawn alike by all who have it, also after a resume."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.storage.errors import ConfigError, DivergedError
from penstock.tasks.model.algorithms.contract import WindowSpec
from penstock.tasks.roles.learning.window import RoundWindow, training_rows

PRIORITISED = WindowSpec(capacity_rows=130, priority_exponent=0.6)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def play(window: RoundWindow, rounds: range) -> list[list[torch.Tensor]]:
    """Two minibatches a round, after each of which its rows have another worth."""
    drawn = []
    for round_ in rounds:
        window.begin_round()
        source = generator(round_)
        for _ in range(2):
            draw = window.draw(source, 16, correction=0.5)
            window.update(draw.rows, (draw.rows * 1.7).sin().abs().double())
            drawn.append([draw.rows, draw.weights])
    return drawn


@pytest.mark.parametrize("spec", [WindowSpec(130), PRIORITISED], ids=["uniform", "prioritised"])
@pytest.mark.parametrize("cut", [1, 3, 9])
def test_a_resumed_window_draws_the_same_rows(spec, cut):
    """Rows and weights to the byte, also after rounds have left; a uniform one needs nothing to be kept."""
    whole = RoundWindow(spec, 40)
    play(whole, range(cut))
    kept = {name: value.copy() for name, value in whole.export().items()}
    assert bool(kept) == whole.prioritised
    expected = play(whole, range(cut, 12))
    resumed = RoundWindow(spec, 40, cut, kept)
    found = play(resumed, range(cut, 12))
    for mine, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))
    for name, value in whole.export().items():
        np.testing.assert_array_equal(resumed.export()[name], value)


def test_a_window_of_one_round_knows_its_number():
    """Counted over the run, as a window of many rounds counts them."""
    window = RoundWindow.of_round(40, 7)
    assert (window.rounds, window.rows) == (range(7, 8), 40)
    assert RoundWindow.of_round(40).rounds == range(1)


def test_it_holds_the_newest_whole_rounds():
    """As many as fit; rows are numbered from the oldest on, the newest round's are the last."""
    window = RoundWindow(WindowSpec(130), 40)
    held = []
    for _ in range(5):
        window.begin_round()
        held.append((window.rounds, window.rows))
    assert held == [
        (range(1), 40),
        (range(2), 80),
        (range(3), 120),
        (range(1, 4), 120),
        (range(2, 5), 120),
    ]
    drawn = window.draw(generator(1), 1200).rows
    assert sorted(set(drawn.tolist())) == list(range(120))
    assert len(window.draw(generator(1), 3).rows) == 3


def test_rows_are_drawn_as_their_priorities_say():
    """By their share of the sum of p ** alpha; weights are (N P) ** -beta over the largest (Schaul et al., 3.4)."""
    window = RoundWindow(PRIORITISED, 40)
    window.begin_round()
    priorities = torch.linspace(0.1, 4.0, 40, dtype=torch.float64)
    window.update(torch.arange(40), priorities)
    chances = priorities**0.6 / (priorities**0.6).sum()
    draw = window.draw(generator(3), 100_000, correction=0.4)
    frequency = torch.bincount(draw.rows, minlength=40) / 100_000
    torch.testing.assert_close(frequency, chances.float(), rtol=0, atol=3e-5)
    expected = (40 * chances) ** -0.4
    torch.testing.assert_close(draw.weights, (expected / expected.max())[draw.rows].float())


def test_a_new_round_is_worth_the_most_so_far():
    """So that each row is likely seen once before it is judged."""
    window = RoundWindow(PRIORITISED, 40)
    window.begin_round()
    window.update(torch.arange(40), torch.full((40,), 1e-6, dtype=torch.float64))
    window.begin_round()
    assert (window.draw(generator(1), 200).rows >= 40).float().mean() > 0.99


def test_a_window_smaller_than_a_round_is_refused():
    """With the setting to change."""
    with pytest.raises(ConfigError, match=r"holds 39 rows, and a round has 40: raise algorithm\.window_rows"):
        RoundWindow(WindowSpec(39), 40)


def test_a_round_that_is_no_whole_number_of_sequences_is_refused():
    """Rows that were left over would be learned by nobody."""
    spec = WindowSpec(64, row_steps=4)
    assert training_rows(spec, 8, 24) == 6
    with pytest.raises(ConfigError, match=r"round_steps = 10: .* have 4 steps each .*change one of the two"):
        training_rows(spec, 10, 30)


def test_priorities_that_are_not_finite_say_that_the_run_diverged():
    """As metrics would at the stage's end; a negative one is a mistake of the algorithm."""
    window = RoundWindow(WindowSpec(64, 0.6), 8)
    window.begin_round()
    with pytest.raises(DivergedError, match="round 0 diverged: 1 of 2 priorities"):
        window.update(torch.tensor([0, 1]), torch.tensor([1.0, torch.nan], dtype=torch.float64))
    with pytest.raises(ValueError, match="at least 0"):
        window.update(torch.tensor([0, 1]), torch.tensor([1.0, -1.0], dtype=torch.float64))
