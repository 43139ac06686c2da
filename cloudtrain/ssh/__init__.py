"""SSH connections to nodes."""
