"""What the tasks made, brought from their nodes into the store and back, verified."""
