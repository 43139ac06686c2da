"""Words on a screen: arguments in, lines and exit codes out."""
