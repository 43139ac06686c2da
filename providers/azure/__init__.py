"""Parts of the Azure driver, over Azure Resource Manager."""
