"""Privacy cost in one unit, delta-approximate rho-zCDP, and its meaning as (epsilon, delta).

`convert` converts between the two, `filter` refuses what would exceed a limit, `calibrate` finds the largest parameters
within a limit, `units` counts in the units of LinkedIn's budget service, `guarantee` describes the result. For reports:
`bounds` and `adaptive` evaluate other theorems, `odometer` bounds what was spent so far; `solve` and `advice` choose
parameters.
"""
