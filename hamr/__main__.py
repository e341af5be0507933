"""`python -m hamr` is the same as `hamr`."""

from hamr.cli import entry

if __name__ == "__main__":
    entry()
