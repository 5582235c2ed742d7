"""What each rank runs: state, optimiser, schedule, step, loop; joins parallel and checkpoint.

- Signal handlers set a flag and nothing else; the flag rides in the step's reduction and all ranks act at the same step.
"""
