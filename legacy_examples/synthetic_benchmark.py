"""Images per second on random data, with and without exchanging gradients."""

import argparse
import time

import numpy as np
import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd
from resnet import perceptron, resnet50

tf.disable_v2_behavior()

MODELS = {"resnet50": resnet50, "mlp": perceptron}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=8, help="of one rank")
    parser.add_argument("--num-warmup-batches", type=int, default=2)
    parser.add_argument("--num-batches-per-iter", type=int, default=2)
    parser.add_argument("--num-iters", type=int, default=5)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def rates(sess, step, args):
    """Returns the images per second of this rank in each iteration."""
    for _ in range(args.num_warmup_batches):
        sess.run(step)
    found = []
    for _ in range(args.num_iters):
        since = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            sess.run(step)
        found.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - since))
    return np.array(found)


def with_spread(values):
    return "%.1f ± %.1f" % (values.mean(), 1.96 * values.std())


def main():
    args = arguments()
    hvd.init()
    tf.set_random_seed(args.seed + hvd.rank())
    random = np.random.RandomState(args.seed + hvd.rank())
    shape = [args.batch_size, args.image_size, args.image_size, 3]
    images = tf.get_variable("images", initializer=random.standard_normal(shape).astype(np.float32), trainable=False)
    labels = tf.get_variable("labels", initializer=random.randint(0, 1000, args.batch_size), trainable=False)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, MODELS[args.model](images))

    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    alone = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    together = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.01), compression=compression).minimize(loss)
    init = tf.global_variables_initializer()
    bcast = hvd.broadcast_variables(tf.trainable_variables(), 0)

    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    with tf.Session(config=config) as sess:
        sess.run(init)
        sess.run(bcast)
        without = rates(sess, alone, args)
        sess.run(bcast)  # the ranks went apart
        exchanged = rates(sess, together, args)
        total_without = hvd.allgather_object(without)
        total = hvd.allgather_object(exchanged)

    if hvd.rank() == 0:
        print("%s, batch size %d, %d gradients" % (args.model, args.batch_size, len(tf.trainable_variables())))
        print("images/s per rank: %s" % with_spread(np.concatenate(total)))
        print("images/s of %d ranks: %s" % (hvd.size(), with_spread(np.sum(total, axis=0))))
        efficiency = np.sum(total, axis=0).mean() / np.sum(total_without, axis=0).mean()
        print("scaling efficiency: %.1f %% of the same ranks without exchange" % (100 * efficiency))


if __name__ == "__main__":
    main()
