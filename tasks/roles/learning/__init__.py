"""Learns: minibatches, gradients, the window of replayed rows, the parameter server.

`learn` is the role. Rows come from `tasks.data.input`, parameters leave through `tasks.data.snapshots`.
"""
