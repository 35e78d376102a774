"""The board of all comparisons with peers, and the programs whose figures it and the README show."""
