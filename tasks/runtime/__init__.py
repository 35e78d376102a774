"""Services for one member of a gang: messages, membership, process groups, shutdown, metrics."""
