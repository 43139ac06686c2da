"""Command line: arguments in, lines and exit codes out."""
