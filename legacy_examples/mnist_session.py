"""Digits with a session loop fed through placeholders, as written for TensorFlow 1 and Horovod."""

import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd
import digits
from network import OPTIMIZERS, arguments, network

tf.disable_v2_behavior()


def main():
    args = arguments(__doc__)
    hvd.init()
    data = digits.load(args.data)

    # Each rank starts from weights of its own; the broadcast below makes them equal.
    tf.set_random_seed(args.seed + hvd.rank())
    images = tf.placeholder(tf.float32, [None, *data.x_train.shape[1:]], name="images")
    labels = tf.placeholder(tf.int64, [None], name="labels")
    logits = network(images)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    correct = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.int64))
    total_correct = hvd.allreduce(correct, average=False)

    opt = OPTIMIZERS[args.optimizer](args.learning_rate * hvd.size())
    opt = hvd.DistributedOptimizer(opt)
    global_step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(loss, global_step=global_step)

    init = tf.global_variables_initializer()
    bcast = hvd.broadcast_global_variables(0)
    saver = tf.train.Saver()

    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    batches = digits.batches(data.x_train, data.y_train, args.batch_size, hvd.rank(), hvd.size(), args.seed)
    steps = args.steps // hvd.size()
    with tf.Session(config=config) as sess:
        sess.run(init)
        sess.run(bcast)
        since = time.time()
        for step in range(1, steps + 1):
            x, y = next(batches)
            _, loss_value = sess.run([train_op, loss], feed_dict={images: x, labels: y})
            if step % args.log_every == 0 and hvd.rank() == 0:
                rate = args.log_every * args.batch_size * hvd.size() / (time.time() - since)
                print("step %d/%d  loss %.4f  %.0f images/s" % (step, steps, loss_value, rate))
                since = time.time()

        # Every rank counts the hits on its share of the held-out images.
        share = slice(hvd.rank(), None, hvd.size())
        hits = sess.run(total_correct, feed_dict={images: data.x_test[share], labels: data.y_test[share]})
        if hvd.rank() == 0:
            if args.checkpoint_dir:
                os.makedirs(args.checkpoint_dir, exist_ok=True)
                saver.save(sess, os.path.join(args.checkpoint_dir, "model.ckpt"), global_step=global_step)
            print("final accuracy: %.4f" % (hits / len(data.y_test)))
        if args.save_weights:
            names = [variable.op.name for variable in tf.trainable_variables()]
            trained = dict(zip(names, sess.run(tf.trainable_variables())))
            np.savez(args.save_weights.format(rank=hvd.rank()), **trained)


if __name__ == "__main__":
    main()
