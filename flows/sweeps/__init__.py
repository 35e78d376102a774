"""Sweeps: grids, searches with Optuna, successive halving and population-based training, and what they show."""
