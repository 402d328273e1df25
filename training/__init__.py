"""Training of the allocator: many instances in virtual time at the simulator's reduced level, PPO on top, a model file last.

Everything but `ppo` and `environment` runs without torch and gymnasium, so dynamics, rewards and the evaluation are tested in
the ordinary environment; `grfleet train` needs the extra `[train]`.
"""
