"""Privacy cost in one unit, delta-approximate rho-zCDP, and its meaning as (epsilon, delta).

`convert` converts between the two and the units of LinkedIn's budget service, finds the largest parameters within a
limit and describes the result; `odometer` refuses what would exceed a limit, and bounds what was spent so far. For
reports: `bounds` and `adaptive` evaluate other theorems; `advice` chooses parameters.
"""
