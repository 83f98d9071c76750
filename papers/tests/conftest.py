"""Fixtures of all tests."""

from support.fixtures import *  # noqa: F403
