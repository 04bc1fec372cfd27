"""Test suites and audits for the mechanisms and engines of this and of other packages.

`discreet.testing.audit` computes how much a mechanism's outcomes reveal about one user; `discreet.testing.mechanisms`
holds the pytest suite that the tests of a mechanism subclass. Nothing here is needed to make a release, and only the
suites import pytest.
"""
