"""Evaluation of plans."""
