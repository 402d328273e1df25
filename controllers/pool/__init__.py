"""The pool loop: makes the instances that a GRServingPool asks for and sums up how they are.

`observe`, `decide`, `execute` and `controller` are as in every loop; `readiness` and `summary` say how the pool is. Pools of pods
have more to look at: `pods` reads a pod, `pod_world` what belongs to them, `pod_decide` chooses (`drains`: who leaves, and how
far the Deployment may shrink; and `resident`: what an instance is worth), `workload` and `sidecar` make the Deployment,
`workload_execute` writes it, `pod_readiness` tells how it goes.
"""
