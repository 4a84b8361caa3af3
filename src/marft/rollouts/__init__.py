"""From tasks to batches: episodes played by the team, and what they are made into."""
