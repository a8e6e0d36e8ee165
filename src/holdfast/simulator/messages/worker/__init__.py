"""One simulated worker process: it answers as a real one does, with numbers instead of tensors.

Knows lanes, epochs, copies, replays and saves as the runtime has them.
Does not know the coordinator, nor what happens to other workers.
"""
