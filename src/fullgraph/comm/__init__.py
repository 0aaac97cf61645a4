"""Communication: groups, plans, exchanges, and the distributed graph. Knows nothing of autograd."""
