"""Simulators whose state is arrays: JAX's (Brax, MuJoCo Playground) and Warp's; a run restores them by that state."""
