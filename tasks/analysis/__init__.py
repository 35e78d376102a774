"""Reads what runs stored: evaluations, returns over time, lineage, recorded episodes, best chip placements.

Reports and commands use these. Nothing here writes into a run except evaluations.
"""
