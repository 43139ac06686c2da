"""One file per provider: makes nodes, tells which exist, destroys them."""

NAMES = ("gcp", "aws", "azure", "local", "hosts")
"""In the order in which users see them. Each folder has `provider.py` and `facts.py`."""
