"""The deterministic simulator: runs the storage protocol in a virtual world with faults, one schedule a seed."""

from penstock.tasks.simulation.runner import SimulationReport, simulate
from penstock.tasks.simulation.schedule import Outcome, Plan, run_schedule

__all__ = ["Outcome", "Plan", "SimulationReport", "run_schedule", "simulate"]
