"""The same arithmetic without Penstock, which bounds what it can reach."""
