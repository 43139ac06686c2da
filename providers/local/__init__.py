"""Provider for nodes on this machine (`provider: local`)."""
