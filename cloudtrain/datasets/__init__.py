"""Input data of a config's `data:`: listed and signed here, downloaded by the nodes."""
