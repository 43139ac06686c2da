"""Playbooks: steps as pure values that prepare a node."""
