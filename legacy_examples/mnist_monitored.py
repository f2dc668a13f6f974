"""Digits through a MonitoredTrainingSession and its hooks, as written for TensorFlow 1 and Horovod."""

import time

import numpy as np
import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd
import digits
from network import OPTIMIZERS, arguments, network

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)


class FinalHook(tf.train.SessionRunHook):
    """Runs ``action`` with the session once training has ended well; the graph is final by then."""

    def __init__(self, action):
        self.action = action

    def end(self, session):
        self.action(session)


def main():
    args = arguments(__doc__)
    hvd.init()
    data = digits.load(args.data)

    # Each rank starts from weights of its own; the hook below makes them equal.
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

    steps = args.steps // hvd.size()
    last = {"time": time.time()}

    def progress(values):
        done = values["step"] - last.get("step", values["step"] - 1)
        rate = done * args.batch_size * hvd.size() / (time.time() - last["time"])
        last.update(step=values["step"], time=time.time())
        return "step %d/%d  loss %.4f  %.0f images/s" % (values["step"], steps, values["loss"], rate)

    def evaluate(sess):
        # Every rank counts the hits on its share of the held-out images.
        share = slice(hvd.rank(), None, hvd.size())
        hits = sess.run(total_correct, feed_dict={images: data.x_test[share], labels: data.y_test[share]})
        if hvd.rank() == 0:
            print("final accuracy: %.4f" % (hits / len(data.y_test)))
        if args.save_weights:
            names = [variable.op.name for variable in tf.trainable_variables()]
            trained = dict(zip(names, sess.run(tf.trainable_variables())))
            np.savez(args.save_weights.format(rank=hvd.rank()), **trained)

    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),
        tf.train.StopAtStepHook(last_step=steps),
        FinalHook(evaluate),
    ]
    if hvd.rank() == 0:
        watched = {"step": global_step, "loss": loss}
        hooks.append(tf.train.LoggingTensorHook(watched, every_n_iter=args.log_every, formatter=progress))

    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    # Only rank 0 saves: several writers would corrupt the checkpoint.
    checkpoint_dir = args.checkpoint_dir if hvd.rank() == 0 else None
    batches = digits.batches(data.x_train, data.y_train, args.batch_size, hvd.rank(), hvd.size(), args.seed)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=hooks, config=config) as sess:
        while not sess.should_stop():
            x, y = next(batches)
            sess.run(train_op, feed_dict={images: x, labels: y})


if __name__ == "__main__":
    main()
