"""Optimizers, schedules of learning rates and clipping of gradients."""
