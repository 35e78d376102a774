"""Runs with a published and committed snapshot, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.native.adapters.structured_actions import stored_action
from penstock.storage.digest import digest
from penstock.storage.refs import Ref, checkpoint_name
from penstock.storage.runs.commit_schema import Commit
from penstock.tasks.data.snapshots.exchange import SnapshotPublisher
from penstock.tasks.inference.loading import load_policy
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.setup.config.consent import record_consent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.storage.refs import SnapshotRef
    from penstock.tasks.inference.policy import Policy
    from penstock.tasks.runtime.run_context import RunContext


class Listener:
    """Takes a publisher's announcements, which nobody waits for."""

    def notify(self, *_: object) -> None:
        """Ignore an announcement."""

    def fail(self, error: BaseException) -> None:
        """Raise an upload's error."""
        raise error


def publish(context: RunContext, version: int) -> SnapshotRef:
    """Store a snapshot whose policy is far from uniform: its actions differ from observation to observation."""
    state = context.algorithm.init(seed=version)
    generator = torch.Generator().manual_seed(version)
    for group in context.algorithm.actor_groups:
        with torch.no_grad():
            for value in state.params[group].values():
                if value.dim() > 1:  # weights: biases would make one choice win everywhere
                    value.add_(0.1 * torch.randn(value.shape, generator=generator))
    assignment = Assignment(
        store=context.run.root.url, run=context.run.name, stage=version - 1, attempt=0, generation=0, gang="",
        role="learn", replica=0, replicas=1, task_run="", cache_folder="", device="cpu",
    )  # fmt: skip
    with SnapshotPublisher(assignment, context, Listener()) as publisher:  # type: ignore[arg-type]
        return publisher.publish(version, state)


def commit(context: RunContext, *returns: float | None, first: int = 0) -> list[SnapshotRef]:
    """Commit one stage for each given mean return of its evaluation; stage n has version n + 1."""
    refs, parent = [], context.run.log.digest_of(first - 1) if first else context.run.genesis()
    for stage, value in enumerate(returns, first):
        refs.append(publish(context, stage + 1))
        evaluation = None if value is None else {"version": stage + 1, "mean_return": value, "episodes": 4}
        checkpoint = Ref(checkpoint_name(stage, digest(b"")), digest(b""), 0)
        made = Commit(
            stage=stage, parent=parent, rounds=(stage, stage), version=stage + 1, env_steps=100 * (stage + 1),
            episodes=0, shards=(), states=(), snapshots=(refs[-1],), checkpoint=checkpoint, metrics={},
            evaluation=evaluation, finished=None,
        )  # fmt: skip
        context.run.log.append(made)
        parent = context.run.log.digest_of(stage)
    return refs


def as_stored(policy: Policy, actions: Any) -> NDArray[Any]:
    """Return actions, as a policy gives them, as shards hold them."""
    is_structured = policy.environment.action.kind == "structured"
    return stored_action(policy.action_space, actions) if is_structured else np.asarray(actions)


def policy_of(context: RunContext, **options: object) -> Policy:
    """Commit one stage of the run, and load its policy as its owner, who trusts the code that it names."""
    commit(context, None)
    record_consent(context.run)
    return load_policy(f"{context.run.root.url}/{context.run.name}", **options)  # type: ignore[arg-type]
