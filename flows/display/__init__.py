"""Shows a run while it is driven: the terminal's panel, Prefect artifacts, curves, stall warnings."""
