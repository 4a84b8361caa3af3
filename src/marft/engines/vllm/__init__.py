"""Generation by vLLM: in this process, or by its server on this machine."""
