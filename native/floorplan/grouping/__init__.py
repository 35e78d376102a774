"""Grouping of a flat netlist: its standard cells become soft macros, as in Circuit Training's published grouping.

`group_netlist` is the entry point. `flat` reads the block, `fixed_groups` makes the groups around macros and ports,
`partitioning` calls Mt-KaHyPar (in a process of `partitioner`), `spread` breaks wide groups up and merges small ones,
and `clustered` writes the result.
Nothing here places a node: the positions are those of the flat netlist.
"""

from penstock.native.floorplan.grouping.group import group_netlist

__all__ = ["group_netlist"]
