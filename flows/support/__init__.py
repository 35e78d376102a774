"""Functions that flows call: execute a run, apply a deployment's defaults, train sweep points, find runs to resume."""
