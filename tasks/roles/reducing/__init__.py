"""Makes one optimizer's step of several learners' gradients: together, or at a parameter server."""
