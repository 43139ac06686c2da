"""What a cluster costs: prices, hours and budgets."""
