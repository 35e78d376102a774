"""Distribution of fragments over processes: policies as data, and the edges that follow from them."""
