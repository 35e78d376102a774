"""Environments in other processes, containers and languages, behind a socket: `docs/socket.md` has the protocol.

`socket_source` connects to one by its address; `EnvironmentServer` serves any environment with Gymnasium's methods, and
`environment.h` and `client.h` are these for C.
"""
