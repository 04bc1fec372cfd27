"""What was asked: a frozen `Query`, the filter language, and the plan that answers it. Touches no data."""
