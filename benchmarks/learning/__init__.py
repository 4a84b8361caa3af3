"""Does a team learn: with which algorithm, team, schedule and model, and how well?"""
