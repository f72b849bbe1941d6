"""How many pods a model needs: what is decided, and a simulator of the loop that decides it.

`windows`, `sight` and `formula` are the autoscaler's own judgement; `hpa` is Kubernetes'
arithmetic; `pods`, `loads` and `loop` close the loop in virtual time. Pure, as all of scheduling.
"""
