"""How much memory a run takes: estimated from shapes, and measured on a GPU."""
