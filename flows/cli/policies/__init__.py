"""Commands that use a trained policy: as a file, in episodes that are shown, and behind a port.

Each is one module, imported when the command line starts, so imports of torch and servers are inside the commands. None
of them changes a run.
"""
