"""Provider for existing machines (`provider: hosts`)."""
