"""A small convolutional network in TensorFlow 1 style, its optimizers, and the flags that the examples share."""

import argparse

import tensorflow.compat.v1 as tf

OPTIMIZERS = {
    "adam": tf.train.AdamOptimizer,
    "sgd": tf.train.GradientDescentOptimizer,
    "momentum": lambda rate: tf.train.MomentumOptimizer(rate, momentum=0.9),
    "rmsprop": tf.train.RMSPropOptimizer,
    "adagrad": tf.train.AdagradOptimizer,
}


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data", help="mnist.npz, or a folder with MNIST's IDX files (default: the digits shipped here)"
    )
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adam")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="of one rank; multiplied by their number")
    parser.add_argument("--steps", type=int, default=600, help="of one rank; divided by their number")
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=50, help="steps between two progress lines")
    parser.add_argument("--checkpoint-dir", help="where rank 0 saves the model (default: nowhere)")
    parser.add_argument("--save-weights", help="npz file for the final weights; {rank} in it is replaced by the rank")
    return parser.parse_args()


def weights(name, shape):
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=0.1))


def network(images):
    """Returns the logits [batch, 10] of images [batch, height, width]."""
    net = tf.expand_dims(images, -1)
    for index, (inputs, outputs) in enumerate([(1, 16), (16, 32)]):
        with tf.variable_scope(f"conv{index}"):
            bias = tf.get_variable("bias", [outputs], initializer=tf.zeros_initializer())
            net = tf.nn.conv2d(net, weights("kernel", [3, 3, inputs, outputs]), [1, 1, 1, 1], "SAME")
            net = tf.nn.max_pool(tf.nn.relu(net + bias), [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    _, height, width, channels = net.shape.as_list()
    net = tf.reshape(net, [-1, height * width * channels])
    with tf.variable_scope("hidden"):
        bias = tf.get_variable("bias", [64], initializer=tf.zeros_initializer())
        net = tf.nn.relu(tf.matmul(net, weights("kernel", [height * width * channels, 64])) + bias)
    with tf.variable_scope("output"):
        bias = tf.get_variable("bias", [10], initializer=tf.zeros_initializer())
        return tf.matmul(net, weights("kernel", [64, 10])) + bias
