"""Privacy cost in one unit, delta-approximate rho-zCDP, and its meaning as (epsilon, delta).

`convert` converts between the two and the units of LinkedIn's budget service, finds the largest parameters within a
limit and describes the result; `privacy_filter` refuses costs that would exceed a limit.
For reports: `bounds` and `adaptive` evaluate other theorems; `advice` chooses parameters.
"""
