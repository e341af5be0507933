"""hamr's rewards for other people's trainers. What a trainer imports here needs the standard library only, so that
`pip install --no-deps hamr` in its own environment is enough."""
