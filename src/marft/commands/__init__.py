"""What `marft …` does: one file a command."""
