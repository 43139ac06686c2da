"""Everything about a config that this machine can find out before a node exists."""
