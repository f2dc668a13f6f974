"""Digits with Keras' fit and Horovod's callbacks."""

import argparse
import os

import numpy as np
import tensorflow as tf
from tensorflow import keras

import compat_hvd.tensorflow.keras as hvd
import digits


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", help="mnist.npz, or a folder with MNIST's IDX files (default: the digits shipped here)"
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="of one rank; multiplied by their number")
    parser.add_argument("--warmup-epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-dir", help="where rank 0 saves the model after each epoch (default: nowhere)")
    parser.add_argument("--save-weights", help="npz file for the final weights; {rank} in it is replaced by the rank")
    return parser.parse_args()


def use_own_gpu():
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")


def network():
    # Built by the first batch; the callback sends the weights before it trains with them.
    return keras.Sequential(
        [
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    args = arguments()
    hvd.init()
    use_own_gpu()
    data = digits.load(args.data)
    x_train, x_test = data.x_train[..., np.newaxis], data.x_test[..., np.newaxis]
    keras.utils.set_random_seed(args.seed + hvd.rank())

    # Each rank trains on images of its own; all make equally many steps.
    count = len(data.y_train) // hvd.size()
    mine = slice(hvd.rank() * count, (hvd.rank() + 1) * count)

    rate = args.learning_rate * hvd.size()
    model = network()
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(rate)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Before the callbacks that read metrics.
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=args.warmup_epochs, verbose=1),
        hvd.callbacks.LearningRateScheduleCallback(rate, multiplier=0.7, start_epoch=args.warmup_epochs),
    ]
    if hvd.rank() == 0 and args.checkpoint_dir:
        os.makedirs(args.checkpoint_dir, exist_ok=True)
        path = os.path.join(args.checkpoint_dir, "model-{epoch}.keras")
        callbacks.append(keras.callbacks.ModelCheckpoint(path))
    share = slice(hvd.rank(), None, hvd.size())
    model.fit(
        x_train[mine],
        data.y_train[mine],
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=callbacks,
        validation_data=(x_test[share], data.y_test[share]),
        verbose=2 if hvd.rank() == 0 else 0,
    )

    hits = np.sum(np.argmax(model.predict(x_test[share], verbose=0), axis=1) == data.y_test[share])
    total = int(hvd.allreduce(int(hits), op=hvd.Sum))
    if hvd.rank() == 0:
        print("final accuracy: %.4f" % (total / len(data.y_test)))
    if args.save_weights:
        np.savez(args.save_weights.format(rank=hvd.rank()), *model.get_weights())


if __name__ == "__main__":
    main()
