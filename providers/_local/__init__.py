"""What `provider: local` is made of; no provider itself, as the underscore says."""
