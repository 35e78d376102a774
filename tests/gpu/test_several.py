"""Several GPUs: each learner has its own, and NCCL adds up their gradients to gloo's precision."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch

from penstock.storage.errors import MemberLostError
from penstock.tasks.runtime.device import prepare_device, visible_gpus
from penstock.tasks.runtime.process_group import Group, Rendezvous
from penstock.tasks.setup.distribution.gpus import VisibleGpus, backend_of, device_indices

from ..tasks.roles.reducing.test_reduction import HOST, PATIENCE_SECONDS, Present, assignment

pytestmark = pytest.mark.gpu
MEMBERS = 2


def test_a_gpu_is_known_by_an_identifier_of_its_own():
    """By as many as torch counts, all different."""
    seen = visible_gpus("cuda")
    assert len(set(seen)) == len(seen) == torch.cuda.device_count()
    assert visible_gpus("cpu") == ()


def add_up(rank: int, port: int, results: Any, leave_at: int) -> None:
    """A member on its own GPU, which finds out by itself which that is."""
    from dataclasses import replace

    names = [f"worker-{number}" for number in range(MEMBERS)]
    advertised = {name: VisibleGpus(HOST, visible_gpus("cuda")).to_json() for name in names}
    device = prepare_device(f"cuda:{device_indices(advertised)[names[rank]]}", 1)
    # NCCL waits for a lost member for so long: less than this test does.
    own = replace(assignment(gang_seconds=30.0), device=str(device))
    rendezvous = None
    present: Any = Present(port)
    backend = backend_of(names, advertised)
    found = []
    try:
        with Group("test", rank, names, present, own, rendezvous, backend) as group:
            for number in range(4):
                if rank == 1 and number == leave_at:
                    return
                gradient = torch.full((1000,), float(rank + number), device=device)
                found.append(group.sum(gradient).cpu())
                found.append(group.copy_from(1, gradient).cpu())
                found.append(group.sum(torch.full((3,), rank + 1.0, dtype=torch.float64)))
    except MemberLostError:
        found.append(torch.tensor(-1.0))
    results.put((rank, backend, str(device), [tensor.tolist() for tensor in found]))


@pytest.mark.parametrize("leave_at", [9, 2], ids=["to the end", "one is lost"])
def test_members_add_up_on_their_own_gpus(leave_at: int):
    """Sums and copies of tensors on GPUs and on the host; a member that is lost is an error and no hang."""
    if torch.cuda.device_count() < MEMBERS:
        pytest.skip(f"found {torch.cuda.device_count()} CUDA device, NCCL needs {MEMBERS}")
    rendezvous = Rendezvous(HOST, PATIENCE_SECONDS)
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    members = [spawn.Process(target=add_up, args=(rank, rendezvous.port, results, leave_at)) for rank in range(MEMBERS)]
    for member in members:
        member.start()
    expected = 1 if leave_at < 9 else MEMBERS
    found = {rank: rest for rank, *rest in (results.get(timeout=PATIENCE_SECONDS) for _ in range(expected))}
    for member in members:
        member.join(PATIENCE_SECONDS)
    assert {backend for backend, _, _ in found.values()} == {"nccl"}
    if leave_at < 9:
        assert found[0][2][-1] == -1.0
        return
    assert {device for _, device, _ in found.values()} == {"cuda:0", "cuda:1"}
    assert found[0][2] == found[1][2]
    assert found[0][2][:3] == [[1.0] * 1000, [1.0] * 1000, [3.0] * 3]
