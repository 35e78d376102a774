"""Defines every error that Penstock raises on purpose.

    PenstockError
    ├── ConfigError                 a setting is wrong; refused before anything starts
    ├── StoreError                  the store can't be reached or written; names the store
    │   ├── ObjectNotFoundError     no object of that name
    │   └── ObjectExistsError       create() was refused: the object exists
    ├── CorruptObjectError          checksum mismatch, cut short or malformed; names the file
    ├── SpecMismatchError           columns are not what was expected
    ├── RunExistsError              a run of that name was created before
    ├── RunNotFoundError            no run of that name
    ├── RunFinishedError            the run has reached its end; nothing is left to do
    ├── RunIdleError                a followed run commits nothing, and is not finished
    ├── CommitConflictError         another writer's commit has that number
    ├── LeaseHeldError              another process drives the run
    ├── LeaseLostError              this process no longer holds the lease under which it works
    ├── GangError                   a gang did not start, or lost a member
    │   ├── GangRefusedError        the cluster has too few slots, or too few free in time
    │   ├── MemberStoppedError      a member was told to leave; the cause is another one's error
    │   ├── MemberLostError         members that synchronise lost one of them; all restart the stage
    │   │   └── MemberLeftError     one was preempted, which is not a failure; all restart the stage
    │   └── SchedulerLostError      the Dask scheduler and its gang were lost
    ├── DivergedError               training gave numbers that are not finite
    └── StageMismatchError          a repetition gave other bytes for the same (stage, round, tile)

All take one message, so they cross process borders by pickle unchanged. A message says what was found, what was
expected and what to do next; it never holds credentials.
"""

from typing import Self


class PenstockError(Exception):
    """This class is the base of all errors that Penstock raises on purpose."""


class ConfigError(PenstockError):
    """A setting is wrong. The message names the field, the value and the expectation."""


class ConsentError(PenstockError):
    """A stored run names code that its reader has not consented to. The message has the code and the command."""


class StoreError(PenstockError):
    """The store can't be reached, read or written. The message names the store."""


class ObjectNotFoundError(StoreError):
    """There is no object of that name in the store."""


class ObjectExistsError(StoreError):
    """An exclusive create was refused, because the object exists."""


class CorruptObjectError(PenstockError):
    """An object differs from what was written. The message names the file."""


class SpecMismatchError(PenstockError):
    """Columns differ from the specification. The message names the columns and both sides."""


class RunExistsError(PenstockError):
    """A run of that name was created before."""


class RunNotFoundError(PenstockError):
    """There is no run of that name under the root."""


class RunFinishedError(PenstockError):
    """The run has reached its end."""


class RunIdleError(PenstockError):
    """A followed run commits nothing, and is not finished."""


class CommitConflictError(PenstockError):
    """Another writer's commit already has this one's number."""


class LeaseHeldError(PenstockError):
    """Another process drives the run. The message names owner, host and process."""


class LeaseLostError(PenstockError):
    """This process, or the driver that a task works for, no longer holds the lease of the run, sweep or import."""


class GangError(PenstockError):
    """A gang of tasks did not start as a whole, or lost a member."""


class GangRefusedError(GangError):
    """The cluster has too few slots for the gang, or too few were free within the time allowed."""


class MemberStoppedError(GangError):
    """A member left because it was told to: another one failed, whose error is the cause, or the stage is given up."""


class MemberLostError(GangError):
    """One of several members that synchronise was lost, so all leave and restart the stage. The message names it."""


class MemberLeftError(MemberLostError):
    """A member left because its worker was preempted; the stage restarts, as often as that happens."""


class SchedulerLostError(GangError):
    """The Dask scheduler of a run's tasks was lost; the last commit is intact."""


class DivergedError(PenstockError):
    """Training gave numbers that are not finite: its metrics can't be committed. The last commit is intact."""

    @classmethod
    def of(cls, found: str) -> Self:
        """Return the error for what was found, with what to do."""
        return cls(
            f"{found}. Nothing of the stage was committed, and a resumed run would end likewise: start another one "
            f"with a lower algorithm.learning_rate, or look for rewards and observations that are not finite"
        )


class StageMismatchError(PenstockError):
    """Repeated work gave other bytes for the same (stage, round, tile)."""
