"""Pages, tables and figures of README and docs, written from docs/results; and how their lines are wrapped."""
