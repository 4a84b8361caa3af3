"""What a team is worth: held-out tasks, benchmarks, comparisons, and how sure the figures are."""
