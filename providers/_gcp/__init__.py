"""The parts of `provider: gcp`; nothing outside it knows Google's words."""
