"""The module that the classes of wrapped Keras optimizers say they are from, as Horovod has it.

The classes are made one by one, by ``compat_hvd.tensorflow.keras_shared.wrapping``.
"""
