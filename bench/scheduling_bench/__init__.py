"""The rows of `bench/scheduling.py`: scenarios, how one of them is tried, and what is reported.

Each group of rows is a module. It hands its work to an executor first and makes its figures when
asked, so that all groups share the processes. Nothing here reads a clock but `costs`.
"""
