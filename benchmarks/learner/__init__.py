"""The learner alone: updates, its input, and several learners."""
