"""Flex-MG: who acts, who sees whom, and how a team's play on a task becomes an episode."""
