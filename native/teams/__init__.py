"""Environments of several agents that PettingZoo's libraries step, behind the pool's interface."""
