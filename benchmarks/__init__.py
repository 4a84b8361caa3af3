"""Measurements of marft, by subject: each file that is a program prints JSON, and says in its docstring how it is run."""
