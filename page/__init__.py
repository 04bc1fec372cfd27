"""Tests of the web page in Chromium, and its npm dependencies."""
