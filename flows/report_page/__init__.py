"""The page of `penstock report`: what is told of runs, how it is drawn, and the parts of the page."""
