"""Imports what members and evaluations run, for the fork server; no Python thread and no device is started.

Nothing is collected meanwhile, which saves a fifth of the time. Workers share the memory of what is imported, since no
collection of theirs looks at it.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal

MODULES = (
    "distributed",
    "penstock.tasks.roles.worker.member",
    "penstock.tasks.runtime.membership",
    "penstock.tasks.analysis.evaluation",
)

signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the command answers it
# Torch's libraries do not load in a folder that was removed meanwhile; workers change to that of their parent.
os.chdir(os.sep)
gc.disable()
for _module in MODULES:
    importlib.import_module(_module)
gc.freeze()
gc.enable()
