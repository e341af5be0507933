"""What `benchmarks/ablations.py` is made of."""
