"""Where artifacts are kept: one file per kind of store."""
