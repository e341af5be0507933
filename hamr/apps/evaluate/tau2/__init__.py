"""`hamr evaluate benchmark=tau2`."""
