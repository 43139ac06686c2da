"""Values, errors, events and protocols: what every other package knows."""
