"""Commands about environments: those that can be made here, and new ones.

Each is one module, imported when the command line starts, so imports of the pool are inside the commands.
"""
