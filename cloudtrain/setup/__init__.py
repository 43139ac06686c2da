"""Prepares the nodes of a cluster; one node creates an environment, the others get its archive."""
