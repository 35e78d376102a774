"""Environment stepping across processes: the protocol, sockets, the server and the pool that talks to it."""
