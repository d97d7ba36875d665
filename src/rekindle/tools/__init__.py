"""The same from a shell: the command line and what it calls."""
