"""Parts of the Azure driver: Azure Resource Manager and nothing else."""
