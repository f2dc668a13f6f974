"""What ``import horovod`` gives where compat_hvd stands in for it."""

__version__ = "0.28.1"
"""The Horovod whose interface this is. Scripts compare it with the version that they need."""
