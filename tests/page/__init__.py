"""Tests of the web page in a browser: make test-page."""
