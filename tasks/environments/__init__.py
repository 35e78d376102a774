"""Makes the pool that a configuration names: native, in torch, or over a chip's netlist."""
