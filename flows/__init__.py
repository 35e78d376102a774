"""Prefect flows, and what people see of them: the command, the live panel, artifacts and the page.

A flow file holds imports and the flow. Prefect puts this folder first on its path when a flow is loaded by file, so no
file here may have the name of a module that anybody imports at top level.
"""
