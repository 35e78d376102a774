"""The parts of a stage: roles, algorithms, distribution policies, and the gang of Dask tasks that runs them."""
