"""What a stage is made of: roles, algorithms, placement, and the gang of Dask tasks that plays them."""
