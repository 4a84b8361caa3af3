"""The base model, the team's LoRA adapters and critics on it, and scoring of what was said."""
