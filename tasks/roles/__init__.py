"""The roles of a gang: what act, learn, environment-server and parameter-server tasks do on their workers."""
