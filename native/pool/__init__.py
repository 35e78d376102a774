"""The pool of C++ environments as a `gymnasium.vector.VectorEnv`, and what it is made of."""
