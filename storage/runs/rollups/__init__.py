"""Roll-ups: shard references of many commits in one file. Commits are read without `content`, which needs pyarrow."""
