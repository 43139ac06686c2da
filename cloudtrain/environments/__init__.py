"""Environments that travel: one node creates them, others get archives of them."""
