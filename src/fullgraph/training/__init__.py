"""Training: metrics over all ranks, named models, the fit loop, run folders, and workers."""
