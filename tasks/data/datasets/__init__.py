"""Stored runs as datasets for other training code: a torch dataset, a replay buffer, Minari."""
