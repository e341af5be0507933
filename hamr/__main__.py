"""`python -m hamr` is the same as `hamr`."""

from hamr.cli import entry

entry()
