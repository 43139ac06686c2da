"""How commands reach a node."""
