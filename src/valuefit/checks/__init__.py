"""Checks of an evaluation: what could make its estimate or its interval wrong, and what to do."""
