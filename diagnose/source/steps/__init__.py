"""The parts of a training step in a source: its loop, model, loss, loader, transfers, reads of the device."""
