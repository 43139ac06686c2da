"""Servers that answer in a cloud's place, checked by what its owner wrote: README.md."""
