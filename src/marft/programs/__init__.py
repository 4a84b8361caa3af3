"""OpenAI's protocol in front of agents: an endpoint for every episode of other people's programs, and a served team."""
