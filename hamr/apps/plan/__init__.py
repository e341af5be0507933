"""Capacity planning before a cluster exists: memory, speed, replicas, and a simulated step."""
