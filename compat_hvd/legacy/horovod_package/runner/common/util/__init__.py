"""Keeps Horovod's path to ``env``."""
