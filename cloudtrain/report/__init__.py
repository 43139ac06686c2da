"""What is told of a run: one HTML page, the same facts as JSON, a message at its end."""
