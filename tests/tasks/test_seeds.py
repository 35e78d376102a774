"""Random streams are keyed by what they are for and whom they serve, and never change."""

import numpy as np

from penstock.tasks.seeds import Purpose, environment_seeds, seed_of


def test_purposes_keep_their_numbers():
    """They are part of a run's identity: a new one gets a new number."""
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "PARAMETERS": 0,
        "ENVIRONMENT": 1,
        "ACTION": 2,
        "PLAN": 3,
        "EVALUATION": 4,
        "REPLAY": 5,
        "LOSS": 6,
        "RESTART": 7,
        "INFERENCE": 8,
        "SWEEP": 9,
        "OPPONENT": 10,
        "OPPONENT_ACTION": 11,
        "OPENING": 12,
    }


def test_seeds_keep_their_values():
    """A stored run can resume only if the same keys give the same seeds with every release."""
    assert [seed_of(1, purpose) for purpose in Purpose] == [
        7434755675892716031,
        77803131892610477,
        15529898885419721899,
        17579876663566485232,
        1678552078425491192,
        15152708626915684481,
        5102377104321400970,
        17991200575022749164,
        8313425274372761653,
        5720443835026831784,
        2648897774172251943,
        12880732874129366936,
        4976014034063718530,
    ]
    assert seed_of(1, Purpose.PLAN, 7) == 13481466760325839235
    assert environment_seeds(5, Purpose.ENVIRONMENT, env_ids=range(3)).tolist() == [
        17996766564426832300,
        12117518156052553219,
        4970885940040055992,
    ]
    assert environment_seeds(5, Purpose.EVALUATION, 2, env_ids=range(2)).tolist() == [
        16409863310320308095,
        9469725771409710769,
    ]


def test_every_part_of_the_key_counts():
    """Run seed, purpose, ids and their order: all streams differ."""
    keys = [
        (seed, purpose, *ids)
        for seed in (0, 1, 2**32 - 1)
        for purpose in Purpose
        for ids in [(), (0,), (1,), (0, 1), (1, 0), (2**31,)]
    ]
    # NumPy's SeedSequence pads with zeros, so that an id of 0 at the end is no id: such keys are never used together.
    keys = [key for key in keys if key[-1] != 0]
    assert len({seed_of(*key) for key in keys}) == len(keys)


def test_an_environments_seed_follows_from_its_id():
    """An environment has the same seed in every process, next to any others."""
    whole = environment_seeds(3, Purpose.ENVIRONMENT, env_ids=range(12))
    assert whole.dtype == np.uint64
    assert len(set(whole.tolist())) == 12
    parts = [environment_seeds(3, Purpose.ENVIRONMENT, env_ids=range(start, start + 4)) for start in (0, 4, 8)]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_evaluation_seeds_differ_from_training_seeds():
    """Neither the seeds of training nor those under another evaluation key return."""
    trained = set(environment_seeds(1, Purpose.ENVIRONMENT, env_ids=range(256)).tolist())
    evaluated = [set(environment_seeds(1, Purpose.EVALUATION, key, env_ids=range(100)).tolist()) for key in range(3)]
    assert len(trained.union(*evaluated)) == 256 + 3 * 100
