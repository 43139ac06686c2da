"""Rehearses a config on local nodes, and breaks them under the user's script."""
