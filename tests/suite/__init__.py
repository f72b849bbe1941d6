"""How the tests are run: in lanes beside each other, recorded, and reported in one table.

`python -m suite test` is what `make test` calls, `python -m suite nightly` what `make nightly`
calls. A plain `pytest` runs whatever it is given in one process, nightly tests too.
"""
