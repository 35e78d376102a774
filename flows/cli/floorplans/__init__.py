"""Commands about floorplans: costs, pictures, annealing, the placer, blocks, and what a run placed.

`app` holds the group and its short commands, `place` the placer, and `shared` what both take and open.
"""

from penstock.flows.cli.floorplans.app import add_to, commands

__all__ = ["add_to", "commands"]
