"""A run that a machine in the cloud attends, its desk: followed and ended through its store."""
