"""Every error that Penstock raises on purpose.

    PenstockError
    ├── ConfigError                 a setting is wrong; refused before anything starts
    ├── StoreError                  the store can't be reached or written; names the store
    │   ├── ObjectNotFoundError     no object of that name
    │   └── ObjectExistsError       create() was refused: the object is there
    ├── CorruptObjectError          checksum mismatch, cut short or malformed; names the file
    ├── SpecMismatchError           columns are not what was expected
    ├── RunExistsError              a run of that name was created before
    ├── RunNotFoundError            no run of that name
    ├── RunFinishedError            the run has reached its end; nothing is left to do
    ├── RunIdleError                the run that somebody follows commits nothing, and is not finished
    ├── CommitConflictError         another writer's commit stands at that number
    ├── LeaseHeldError              somebody else drives the run
    ├── LeaseLostError              this process drives the run no longer
    ├── GangError                   a gang did not start, or lost a member
    │   ├── GangRefusedError        the cluster can't hold the gang, or could not in time
    │   ├── MemberLostError         members that work in step lost one of them; all begin the stage again
    │   │   └── MemberLeftError     one had to leave, which is no failure; the same
    │   └── SchedulerLostError      the Dask scheduler went away, and its gang with it
    └── StageMismatchError          a re-run made other bytes for the same (stage, round, tile)

All take one message, so they cross process borders by pickle unchanged. A message says what was found, what was
expected and what to do next; it never holds credentials.
"""


class PenstockError(Exception):
    """Base of all errors that Penstock raises on purpose."""


class ConfigError(PenstockError):
    """A setting is wrong: names the field, the value and what would be right."""


class StoreError(PenstockError):
    """The store can't be reached, read or written: names the store."""


class ObjectNotFoundError(StoreError):
    """There is no object of that name in the store."""


class ObjectExistsError(StoreError):
    """An exclusive create was refused, because the object exists."""


class CorruptObjectError(PenstockError):
    """An object is not what was written: names the file."""


class SpecMismatchError(PenstockError):
    """Columns differ from the specification: names the columns and both sides."""


class RunExistsError(PenstockError):
    """A run of that name was created before."""


class RunNotFoundError(PenstockError):
    """There is no run of that name under the root."""


class RunFinishedError(PenstockError):
    """The run has reached its end."""


class RunIdleError(PenstockError):
    """A run that somebody waits for commits nothing, and is not finished."""


class CommitConflictError(PenstockError):
    """Another writer's commit stands where this one should go."""


class LeaseHeldError(PenstockError):
    """Somebody else drives the run: names owner, host and process."""


class LeaseLostError(PenstockError):
    """This process or task works for a driver that no longer drives the run."""


class GangError(PenstockError):
    """A gang of tasks did not start as a whole, or lost a member."""


class GangRefusedError(GangError):
    """The cluster can't hold the gang, or could not within the time allowed."""


class MemberLostError(GangError):
    """One of several members that work in step was lost, so all have to leave and begin again: names who."""


class MemberLeftError(MemberLostError):
    """A member had to leave because its worker was told to end; the stage begins again, as often as that happens."""


class SchedulerLostError(GangError):
    """The Dask scheduler that a run's tasks were with is there no more; the last commit stands."""


class StageMismatchError(PenstockError):
    """Something done again gave other bytes for the same (stage, round, tile)."""
