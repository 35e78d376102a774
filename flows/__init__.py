"""Prefect flows, and their user interface: the command, the live panel, artifacts and the report.

A flow file holds imports and the flow. Prefect puts this folder first on its path when a flow is loaded by file, so no
file here may have the name of a module that is imported at top level elsewhere.
"""
