"""Parameters and checkpoints as stored files: written, announced, fetched, quantised, and as differences."""
