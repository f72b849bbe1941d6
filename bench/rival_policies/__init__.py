"""What other servers do, as policies that the simulator can run beside ours.

Each module is one system or one usual way. It depends on the seam (`policy.Policy`) and on the
contract, never on our own policies. Where a system's behaviour is unclear or hurt by how it is
built rather than by what it decides, it gets the better reading; each docstring says which.
"""
