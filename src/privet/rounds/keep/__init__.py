"""What a run keeps on the disk to go on from: checkpoints, chains of them, the journal."""
