"""Driver for Azure, over Azure Resource Manager."""
