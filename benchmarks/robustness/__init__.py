"""What becomes of runs that are killed, and of runs whose learning rate is far off."""
