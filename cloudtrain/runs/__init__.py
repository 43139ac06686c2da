"""One training run, from wherever it is to its end."""
