"""Generation: engines turn token prompts into sampled tokens with the log-probs they were sampled at."""
