"""Pure tensor maths: credit, advantages, losses and group statistics. No config, no logging, no device."""
