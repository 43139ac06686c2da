"""One folder per provider: creates nodes, lists them and deletes them."""

NAMES = ("gcp", "aws", "azure", "local", "hosts")
"""In the order in which users see them. Each folder has `provider.py` and `facts.py`."""
