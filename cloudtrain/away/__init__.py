"""A run attended by a machine in the cloud, its controller: followed and ended by its store."""
