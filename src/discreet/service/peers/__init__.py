"""Budget shares exchanged with other data centres."""
