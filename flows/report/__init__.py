"""The HTML report of stored runs, and their export for TensorBoard."""
