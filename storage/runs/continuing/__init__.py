"""Continues runs where they do not go on by themselves: from an old commit, and after the commit that ended them.

`fork_run` starts another run from a commit, `abandon_after` takes damaged commits off a log, and `store_extension` lets
a finished run go on. A commit that is intact is never changed or removed.
"""
