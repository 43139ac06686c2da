"""What a config file would do with this user's rights, and whether the user has agreed to it."""
