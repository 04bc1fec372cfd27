"""What privacy costs, in one currency (delta-approximate rho-zCDP), and what that means as (epsilon, delta).

`convert` translates, `filter` refuses what would exceed a limit, `calibrate` finds the largest parameters a limit
allows, `units` speaks the language of LinkedIn's budget service, `guarantee` says it to people. For reports: `bounds`
and `adaptive` say what other theorems say, `odometer` what was spent so far; `solve` and `advice` choose parameters.
"""
