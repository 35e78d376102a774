"""Settings that have no effect beside the others are named, and no others are."""

import re

import pytest

from penstock.tasks.setup.config.loading import build_config, load_preset, presets
from penstock.tasks.setup.config.without_effect import settings_without_effect

TILES = {"num_envs": 8, "envs_per_tile": 4}


def lines(values: dict, *, local_store: bool = True) -> list[str]:
    return settings_without_effect(build_config(values), local_store=local_store)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"final_learning_rate": 1e-4}, "final_learning_rate = 0.0001 has no effect: algorithm.anneal_rounds is 0"),
        ({"name": "dqn", "correction_minibatches": 9}, "correction_minibatches = 9 has no effect: .*priority_exponent"),
        ({"name": "dqn", "priority_correction": 0.5}, "priority_correction = 0.5 has no effect: .*without priorities"),
        ({"reward_normalization": "running"}, "= running has no effect: algorithm.normalize_reward is False"),
        ({"name": "mappo", "value_decay": 0.9}, "value_decay = 0.9 has no effect: algorithm.normalize_value is False"),
        ({"name": "dqn", "returns_across_rounds": True}, "has no effect: algorithm.return_steps is 1, so no return"),
        ({"name": "qr_dqn", "noisy_scale": 0.5, "first_epsilon": 0.3}, "noisy_scale is 0.5, so noisy layers explore"),
        ({"cells": {"image": [11]}}, "has no effect: algorithm.network is 'mlp', which reads no leaves"),
        ({"sequence_steps": 8}, "sequence_steps = 8 has no effect: algorithm.network is 'mlp'"),
    ],
)
def test_a_setting_of_the_algorithm_is_named_with_the_reason(algorithm: dict, expected: str):
    """The line has its value, and what would have to be set for it to have an effect."""
    (line,) = lines({"algorithm": algorithm})
    assert re.search(expected, line)


def test_differences_of_snapshots_are_named_for_a_folder_alone():
    """Files of a folder are used in place; a remote store is read by differences."""
    values = {"distribution": {"snapshot_dtype": "bfloat16", "snapshot_differences": True}}
    (line,) = lines(values)
    assert line.startswith("distribution.snapshot_differences = true has no effect: the store is a folder")
    assert lines(values, local_store=False) == []


def test_counts_of_tasks_that_the_policy_does_not_have_are_named():
    """The line has the policy."""
    (line,) = lines({"distribution": {"policy": "gpu_only", "act_tasks": 2}, "environment": TILES})
    assert line == "distribution.act_tasks = 2 has no effect: policy 'gpu_only' has no tasks of this kind"


@pytest.mark.parametrize(
    "algorithm",
    [
        {"final_learning_rate": 1e-4, "anneal_rounds": 10},
        {"name": "dqn", "priority_exponent": 0.6, "correction_minibatches": 9, "priority_correction": 0.5},
        {"network": "recurrent", "sequence_steps": 8},
        {"network": "leaves", "cells": {"image": [11]}},
        {"normalize_reward": True, "reward_normalization": "running"},
        {"name": "dqn", "return_steps": 3, "returns_across_rounds": True, "first_epsilon": 0.3},
        {"name": "qr_dqn", "first_epsilon": 0.3, "last_epsilon": 0.1, "epsilon_minibatches": 7},
    ],
)
def test_settings_with_an_effect_are_not_named(algorithm: dict):
    """Beside the setting that they need."""
    assert lines({"algorithm": algorithm}) == []


@pytest.mark.parametrize("preset", sorted(presets()))
def test_no_preset_has_settings_without_effect(preset: str):
    """Each line of a preset does something."""
    assert lines(load_preset(preset)) == []
