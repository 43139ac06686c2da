"""Parts of `provider: local`."""
