"""Keeps Horovod's path to ``util``."""
