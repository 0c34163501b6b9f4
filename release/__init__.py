"""Checks of a release: the built files (`make release-check`), the lowest supported versions (`make test-lowest`)."""
