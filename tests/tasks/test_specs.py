"""The types by which algorithm, environment and runtime describe data to each other."""

import pytest
import torch

from penstock import native
from penstock.storage.shards.specs import Spec
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, ParameterGroup

from ..support.environments.own_ids import OWN_IDS


def test_a_groups_tensors_are_its_vector():
    """In the order of the names; writing to the vector changes the tensors, which are leaves for gradients."""
    group = ParameterGroup({"b": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "a": torch.tensor(5.0)})
    assert list(group) == ["b", "a"]
    assert len(group) == 2
    assert group.flat.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    group.flat.mul_(2)
    assert group["b"].tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert group["a"].item() == 10.0
    assert all(leaf.is_leaf and leaf.requires_grad for leaf in group.leaves)
    assert not group.flat.requires_grad
    gradients = torch.autograd.grad(group["b"].sum() + 3 * group["a"], group.leaves)
    assert [gradient.tolist() for gradient in gradients] == [[[1.0, 1.0], [1.0, 1.0]], 3.0]


def test_a_group_owns_its_memory():
    """Neither the tensors it was made of nor a copy for a device change with it."""
    source = torch.tensor([1.0, 2.0])
    group = ParameterGroup({"a": source})
    copy = group.to(torch.device("cpu"))
    group.flat.zero_()
    assert source.tolist() == [1.0, 2.0]
    assert copy["a"].tolist() == [1.0, 2.0]
    assert copy.flat.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", OWN_IDS)
def test_every_environment_of_the_pool_can_be_described(name: str):
    """Algorithms get the pool's description as plain Python numbers."""
    pool = native.make(name, 2, max_episode_steps=9)
    spec = EnvironmentSpec.from_pool(name, dict(pool.environment))
    assert (spec.name, spec.max_episode_steps) == (name, 9)
    assert spec.observation == Spec(str(pool.single_observation_space.dtype), pool.single_observation_space.shape)
    axis = (spec.agents,) if spec.agents else ()
    assert (spec.agents, spec.reward) == (3 if name.startswith("simple_spread") else 0, Spec("float32", axis))
    if spec.action.kind == "discrete":
        space = pool.single_action_space
        choices = {*space.nvec.tolist()} if spec.agents else {int(space.n)}
        assert {spec.action.n} == choices
        assert spec.action == ActionSpec("discrete", n=spec.action.n, shape=axis)
        assert spec.action.spec == Spec("int64", axis)
    else:
        space = pool.single_action_space
        assert (spec.action.shape, spec.action.low, spec.action.high) == (
            space.shape,
            tuple(space.low.ravel().tolist()),
            tuple(space.high.ravel().tolist()),
        )
        assert spec.action.spec == Spec("float32", space.shape)
    pool.close()
