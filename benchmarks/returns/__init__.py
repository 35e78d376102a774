"""How well algorithms learn: returns after a fixed number of steps, next to peers' own scripts."""
