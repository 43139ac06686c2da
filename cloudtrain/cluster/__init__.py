"""A cluster: from its plan to its nodes, opened for one command."""
