"""Acts: steps a tile of environments, writes its shard and its state after each round.

`act` is the role; `shard_writer` builds the Arrow file in place, `stragglers` leaves late tiles out when the quorum is
below 1. Nothing here learns or reads shards back.
"""
