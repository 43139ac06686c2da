"""Artifacts: from the nodes into the store and back, verified."""
