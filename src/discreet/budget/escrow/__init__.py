"""Budgets that are split over data centres: each holds a share of the limit, and shares move between them."""
