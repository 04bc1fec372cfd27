"""Tests of the install lines of the README: make test-install."""
