"""Pure functions for reinforcement learning: advantages, losses, sampling rules, packing. No I/O, no Ray."""
