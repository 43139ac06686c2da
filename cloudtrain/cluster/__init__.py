"""A cluster from its plan to its nodes, open for a command."""
