"""One shared trainer: tasks, plan, randomness, precision, checkpoints."""
