"""One file per provider: makes nodes, tells which exist, destroys them."""

NAMES = ("gcp", "aws", "azure", "local", "hosts")
"""In the order in which users are told of them. Each has `<name>.py` and `_<name>/facts.py`."""
