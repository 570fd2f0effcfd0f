"""What a run keeps on disk: checkpoints, metrics, episodes, locks, checksums."""
