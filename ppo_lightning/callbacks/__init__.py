"""Lightning callbacks: rollout, metrics, checkpoint, samples, progress."""
