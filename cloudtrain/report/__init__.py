"""The report on a run: one HTML page, or the same facts as JSON."""
