"""Test suites and audits for mechanisms and engines, ours and those of other packages.

`discreet.testing.audit` computes what a mechanism's outcomes reveal about one user; `discreet.testing.mechanisms` holds
the pytest suite that the tests of a mechanism subclass. Nothing here is needed to make a release, and only the
suites import pytest.
"""
