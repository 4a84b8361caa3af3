"""The run directory: everything a run writes, so that a kill at any moment loses nothing already written."""
