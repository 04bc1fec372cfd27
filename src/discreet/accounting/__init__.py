"""Privacy cost in one unit, delta-approximate rho-zCDP, and its meaning as (epsilon, delta).

`convert` converts between the two and the units of LinkedIn's budget service, finds the largest parameters within a
limit and describes the result; `odometer` refuses costs that would exceed a limit, and bounds the privacy loss so far.
For reports: `bounds` and `adaptive` evaluate other theorems; `advice` chooses parameters.
"""
