"""One training run, from its launch to its landed end."""
