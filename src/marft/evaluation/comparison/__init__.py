"""Is the team worth it? The team, one agent alone, its majority vote and partly frozen teams under one budget of tokens."""
