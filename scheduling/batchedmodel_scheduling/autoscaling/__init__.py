"""How many pods a model needs: what is decided, and a simulator of the loop that decides it.

`windows`, `observation` and `formula` are the autoscaler's own judgement; `hpa` is Kubernetes'
arithmetic; `simulated_pods` and `simulated_loop` close the loop in virtual time.
"""
