"""ResNet-50 (He et al., 2015) and a multilayer perceptron, in TensorFlow 1 style."""

import tensorflow.compat.v1 as tf

BLOCKS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, number of blocks, stride of the first
EXPANSION = 4


def variable(name, shape, initializer=None):
    return tf.get_variable(name, shape, initializer=initializer or tf.variance_scaling_initializer(2.0))


def convolution(net, outputs, size, stride, name, activate=True):
    """Convolution, batch normalisation with the batch's statistics, and ReLU; 3 trainable variables."""
    inputs = net.shape[-1]
    with tf.variable_scope(name):
        kernel = variable("kernel", [size, size, inputs, outputs])
        net = tf.nn.conv2d(net, kernel, [1, stride, stride, 1], "SAME")
        scale = variable("gamma", [outputs], tf.ones_initializer())
        offset = variable("beta", [outputs], tf.zeros_initializer())
        net = tf.nn.fused_batch_norm(net, scale, offset)[0]
        return tf.nn.relu(net) if activate else net


def bottleneck(net, width, stride, name):
    with tf.variable_scope(name):
        shortcut = net
        if stride != 1 or net.shape[-1] != width * EXPANSION:
            shortcut = convolution(net, width * EXPANSION, 1, stride, "shortcut", activate=False)
        net = convolution(net, width, 1, 1, "reduce")
        net = convolution(net, width, 3, stride, "middle")
        net = convolution(net, width * EXPANSION, 1, 1, "expand", activate=False)
        return tf.nn.relu(net + shortcut)


def dense(net, outputs, name):
    with tf.variable_scope(name):
        kernel = variable("kernel", [net.shape[-1], outputs])
        return tf.matmul(net, kernel) + variable("bias", [outputs], tf.zeros_initializer())


def resnet50(images, classes=1000):
    """Returns the logits [batch, classes] of images [batch, height, width, 3]; 161 trainable variables."""
    net = convolution(images, 64, 7, 2, "stem")
    net = tf.nn.max_pool(net, [1, 3, 3, 1], [1, 2, 2, 1], "SAME")
    for stage, (width, count, stride) in enumerate(BLOCKS):
        for block in range(count):
            net = bottleneck(net, width, stride if block == 0 else 1, f"stage{stage}_block{block}")
    return dense(tf.reduce_mean(net, [1, 2]), classes, "classes")


def perceptron(images, classes=1000):
    """Returns the logits [batch, classes] of images [batch, height, width, 3]; 6 trainable variables."""
    net = tf.reshape(images, [-1, images.shape[1] * images.shape[2] * images.shape[3]])
    net = tf.nn.relu(dense(net, 512, "hidden0"))
    net = tf.nn.relu(dense(net, 512, "hidden1"))
    return dense(net, classes, "classes")
