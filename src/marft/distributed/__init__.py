"""Beyond one process: workers that play, who watches them, and what is said between them and the trainer."""
