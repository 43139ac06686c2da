"""What `provider: hosts` is made of."""
