"""The loop: collect episodes, estimate advantages, update every agent, record, checkpoint, evaluate."""
