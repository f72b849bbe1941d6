"""What one caller or one neighbour does to the rest: each module is a table of `neighbours.py`.

`figures(quick, before)` measures and gives its figures. `before` is a checkout of another commit,
which is measured in turns with this one; without it, what compares the two is left out.
"""
