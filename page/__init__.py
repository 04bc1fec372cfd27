"""Tests of the web page in Chromium, and what it takes from npm."""
