"""Checks of a release: the built files (`make release-check`) and the lowest supported versions (`make test-lowest`)."""
