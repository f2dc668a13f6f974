"""Running scripts that were written for Horovod as they are; ``python -m compat_hvd.legacy script.py``."""
