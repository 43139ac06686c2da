"""Parts of `provider: hosts`."""
