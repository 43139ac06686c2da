"""Everything about a config that can be found out before a node exists."""
