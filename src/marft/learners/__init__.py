"""What updates weights: microbatches, losses, trust regions."""
