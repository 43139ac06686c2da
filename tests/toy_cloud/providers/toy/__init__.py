"""A cloud that is a folder of JSON files."""
