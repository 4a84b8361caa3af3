"""Tokens, episodes and sandbox runs a second, and memory, against other libraries where there are any."""
