"""A checkpoint returns the written state bit for bit, or raises."""

from pathlib import Path

import pytest
import torch

from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import Ref, parse_checkpoint_name
from penstock.storage.stores.open import open_store
from penstock.storage.stores.protocol import Store
from penstock.tasks.data.snapshots.checkpoints import load_checkpoint, write_checkpoint
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, ParameterGroup, Spec, State

CPU = torch.device("cpu")
READER = {"commit": 3, "epoch": 0, "seed": 1, "cursor": 40}
VECTORS = EnvironmentSpec("vectors", Spec("float32", (3,)), ActionSpec("box", shape=(2,)), None, None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def odd_state() -> State:
    """Names that are not sorted, paths in names, scalars, whole numbers, not-a-number, infinity and signed zero."""
    numbers = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    return State(
        params={
            "zebra": ParameterGroup({"b": torch.randn(2, 3), "a": numbers, "deep/er": torch.randn(1)}),
            "ape": ParameterGroup({"x": torch.randn(4)}),
        },
        optimizer={
            "zebra": {"step": torch.tensor(7.0), "mean": torch.randn(11)},
            "ape": {"count": torch.tensor([2**62 + 1, -1])},
        },
        targets={"network/0.weight": torch.randn(3, 2, dtype=torch.float64), "version": torch.tensor(5)},
    )


def everything(state: State) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Names (those of a group in their order), types, shapes and bytes: what has to be equal."""
    named = [
        (f"params/{group}/{name}", value)
        for group, values in sorted(state.params.items())
        for name, value in values.items()
    ]
    named += [(f"flat/{group}", values.flat) for group, values in sorted(state.params.items())]
    rest = [
        (f"optimizer/{group}/{name}", value)
        for group, values in state.optimizer.items()
        for name, value in values.items()
    ]
    rest += [(f"targets/{name}", value) for name, value in state.targets.items()]
    return [
        (name, str(value.dtype), tuple(value.shape), value.detach().numpy().tobytes())
        for name, value in named + sorted(rest, key=lambda item: item[0])
    ]


def test_a_state_comes_back_bit_for_bit(store: Store):
    """Values, types, shapes, and the order of names in a group, which is the order of its vector."""
    state = odd_state()
    ref = write_checkpoint(store, 3, state, READER)
    back = load_checkpoint(store, ref, CPU).state
    assert everything(back) == everything(state)
    assert parse_checkpoint_name(ref.name).stage == 3
    assert ref.nbytes == len(store.read(ref.name))


def test_training_resumes_bit_for_bit(store: Store):
    """The next optimizer steps after a checkpoint make the same bytes as without it, also in the next checkpoint."""
    ppo = PPO(PPOSettings(hidden=(4,), anneal_rounds=1), VECTORS)
    state = ppo.init(1)

    def learn(state: State) -> State:
        for loss in ppo.losses:
            size = len(state.params[loss.group].flat)
            with torch.no_grad():
                state = ppo.update(state, loss, torch.linspace(-1, 1, size))
        return state

    state = learn(state)
    back = load_checkpoint(store, write_checkpoint(store, 0, state, READER), CPU).state
    assert everything(learn(back)) == everything(learn(state))
    assert write_checkpoint(store, 1, back, READER) == write_checkpoint(store, 1, state, READER)


def test_loaded_parameters_can_be_trained(store: Store):
    """Parameters are leaves that share their vector's memory, which is no part of a file any more."""
    back = load_checkpoint(store, write_checkpoint(store, 0, odd_state(), READER), CPU).state
    for group in back.params.values():
        assert all(leaf.requires_grad and leaf.is_leaf for leaf in group.leaves)
        group.flat.fill_(2.5)
        assert all((leaf == 2.5).all() for leaf in group.leaves)
    for values in back.optimizer.values():
        for value in values.values():
            value.add_(1)


def test_the_same_state_has_the_same_bytes(store: Store):
    """They have the same name, in whatever order optimizer and targets were built; another state has another."""
    torch.manual_seed(1)
    state = odd_state()
    first = write_checkpoint(store, 3, state, READER)
    turned = State(
        params=state.params,
        optimizer={group: dict(reversed(values.items())) for group, values in reversed(state.optimizer.items())},
        targets=dict(reversed(state.targets.items())),
    )
    assert write_checkpoint(store, 3, turned, READER) == first
    state.optimizer["zebra"]["step"] += 1
    other = write_checkpoint(store, 3, state, READER)
    assert other.name != first.name
    assert store.list("checkpoints/") == sorted([first.name, other.name])


def test_the_order_of_a_group_is_part_of_the_state(store: Store):
    """Two groups of equal tensors in another order have other vectors, and must not pass for the same."""
    tensors = {"a": torch.zeros(2), "b": torch.zeros(2)}
    one = State(params={"p": ParameterGroup(tensors)}, optimizer={"p": {}})
    two = State(params={"p": ParameterGroup(dict(reversed(tensors.items())))}, optimizer={"p": {}})
    first, second = write_checkpoint(store, 0, one, READER), write_checkpoint(store, 0, two, READER)
    assert first.digest != second.digest
    assert list(load_checkpoint(store, first, CPU).state.params["p"]) == ["a", "b"]
    assert list(load_checkpoint(store, second, CPU).state.params["p"]) == ["b", "a"]


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "empty"])
def test_a_damaged_file_is_named(store: Store, damage: str):
    """One bit, a missing end, or bytes too many: never a state that is a little wrong."""
    ref = write_checkpoint(store, 3, odd_state(), READER)
    data = bytearray(store.read(ref.name))
    if damage == "flipped":
        data[-1] ^= 1
    changed = {"flipped": data, "cut": data[:-5], "longer": data + b"\0", "empty": b""}[damage]
    store.write(ref.name, [memoryview(bytes(changed))])
    with pytest.raises(CorruptObjectError, match=ref.name):
        load_checkpoint(store, ref, CPU)


def test_another_checkpoints_content_is_refused(store: Store):
    """A whole file under the wrong reference is as wrong as a damaged one."""
    first = write_checkpoint(store, 0, odd_state(), READER)
    second = write_checkpoint(store, 1, odd_state(), READER)
    with pytest.raises(CorruptObjectError, match=second.name):
        load_checkpoint(store, Ref(second.name, first.digest, first.nbytes), CPU)
