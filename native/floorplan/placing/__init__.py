"""Places a block's macros within a given time: one annealing by parallel chains, kept on the disk as it goes.

`place` is the entry point; `PlaceResult` and `PlaceProgress` say what it found and how far it is. `search` runs the
chains, `state` keeps them in a folder, `starting` makes the placement that they start from legal, and `results` writes
what they found. Nothing here knows a terminal.
"""

from penstock.native.floorplan.placing.results import PlaceResult
from penstock.native.floorplan.placing.search import PlaceProgress, place

__all__ = ["PlaceProgress", "PlaceResult", "place"]
