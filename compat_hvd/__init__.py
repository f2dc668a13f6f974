"""TensorFlow 1 Horovod scripts on today's TensorFlow and any MPI.

Importing this package loads neither TensorFlow nor MPI; ``import compat_hvd.tensorflow as hvd`` does.
"""

__version__ = "0.1.0"
