"""What makes a node ready: steps as pure values."""
