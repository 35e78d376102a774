"""A deterministic simulator of the protocol: the real code in one thread, under a virtual clock, with faults."""
