"""The `penstock` command, one module per group of commands.

Modules import Prefect, Dask and torch inside functions, so that the command starts immediately.
"""

import sys


def command() -> None:
    """Run the command; Ctrl-C while its modules are imported ends it with one line, as it does later."""
    try:
        from penstock.flows.api.interrupts import lost_interrupts_repeated, terminations_raised
        from penstock.flows.cli.main import main
    except KeyboardInterrupt:
        sys.stderr.write("stopped; nothing was changed\n")
        sys.exit(130)
    with terminations_raised(), lost_interrupts_repeated():
        main()
