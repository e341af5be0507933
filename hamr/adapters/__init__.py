"""hamr's rewards for other trainers.

Modules that a trainer imports need only the standard library, so `pip install --no-deps <checkout>` in its environment
is enough.
"""
