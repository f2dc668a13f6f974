"""What ``compat_hvd.tensorflow.keras`` and ``compat_hvd.keras`` have in common; imports no Keras by itself."""
