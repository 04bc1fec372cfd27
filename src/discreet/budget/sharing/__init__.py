"""Limits that are split over data centres."""
