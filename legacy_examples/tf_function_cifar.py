"""A Keras model trained by a step of one's own in tf.function, with a DistributedGradientTape."""

import argparse

import numpy as np
import tensorflow as tf

import cifar
import compat_hvd.tensorflow as hvd


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder cifar-10-batches-bin (default: the digits shipped here)")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="of one rank; multiplied by their number")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-weights", help="npz file for the final weights; {rank} in it is replaced by the rank")
    return parser.parse_args()


def use_own_gpu():
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")


def network(shape):
    return tf.keras.Sequential(
        [
            tf.keras.Input(shape),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )


def main():
    args = arguments()
    hvd.init()
    use_own_gpu()
    data = cifar.load(args.data)
    tf.random.set_seed(args.seed + hvd.rank())

    # Each rank trains on images of its own; all make equally many steps.
    count = len(data.y_train) // hvd.size()
    mine = slice(hvd.rank() * count, (hvd.rank() + 1) * count)
    dataset = tf.data.Dataset.from_tensor_slices((data.x_train[mine], data.y_train[mine]))
    dataset = dataset.shuffle(count, seed=args.seed).batch(args.batch_size, drop_remainder=True)

    model = network(data.x_train.shape[1:])
    optimizer = tf.keras.optimizers.Adam(args.learning_rate * hvd.size())
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_loss = tf.keras.metrics.Mean()

    @tf.function
    def train_step(inputs, labels):
        with tf.GradientTape() as tape:
            batch_loss = loss(labels, model(inputs, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(batch_loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_loss.update_state(batch_loss)

    hvd.broadcast_variables(model.variables, root_rank=0)
    for epoch in range(args.epochs):
        train_loss.reset_state()
        for inputs, labels in dataset:
            train_step(inputs, labels)
        mean = hvd.allreduce(train_loss.result())
        if hvd.rank() == 0:
            print("epoch %d/%d  loss %.4f" % (epoch + 1, args.epochs, mean))

    # Every rank counts the hits on its share of the held-out images.
    share = slice(hvd.rank(), None, hvd.size())
    predicted = np.argmax(model(data.x_test[share], training=False), axis=1)
    hits = hvd.allreduce(tf.constant(int(np.sum(predicted == data.y_test[share]))), op=hvd.Sum)
    if hvd.rank() == 0:
        print("final accuracy: %.4f" % (int(hits) / len(data.y_test)))
    if args.save_weights:
        np.savez(args.save_weights.format(rank=hvd.rank()), *[weight.numpy() for weight in model.trainable_variables])


if __name__ == "__main__":
    main()
