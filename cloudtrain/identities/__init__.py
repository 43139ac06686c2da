"""This user's identity to a cloud: one module per cloud, one identity per profile and command.

Drivers and stores take sessions and credentials from here alone. Whatever goes wrong while these
are fetched is a CredentialsError whose hint is the command that cures it; only a lost connection
keeps its own exception, which callers retry."""
