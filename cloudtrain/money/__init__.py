"""Costs of a cluster: prices, hours and budgets."""
