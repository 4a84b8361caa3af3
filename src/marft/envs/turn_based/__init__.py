"""Games that take turns, whoever made them: who sits where, what a turn earned, positions that are values, moves in words."""
