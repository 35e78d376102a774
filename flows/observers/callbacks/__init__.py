"""Callbacks: they follow a run in the flow's process, after each commit, and write nothing to it.

`callback.Callback` is the base class of all of them, `delivery.Delivery` calls them from threads of their own.
"""
