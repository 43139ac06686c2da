"""Rights of this user that a config file would use, and the user's consent to that."""
