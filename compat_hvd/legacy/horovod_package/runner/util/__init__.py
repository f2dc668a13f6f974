"""Keeps Horovod's path to ``threads``."""
