"""Any agent program as a trainable team: an OpenAI-compatible endpoint for every episode, and those who run programs."""
