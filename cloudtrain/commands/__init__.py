"""One short file per command: the story that it tells."""
