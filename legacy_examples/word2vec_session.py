"""Word vectors by skip-gram in a session, as written for TensorFlow 1 and Horovod: embeddings with sparse gradients."""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd
import words

tf.disable_v2_behavior()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", help="a text file, for example text8 (default: Python's language reference)")
    parser.add_argument("--vocabulary-size", type=int, default=2000)
    parser.add_argument("--embedding-size", type=int, default=64)
    parser.add_argument("--window", type=int, default=2, help="words on each side that count as near")
    parser.add_argument("--negatives", type=int, default=16, help="words drawn for each batch that are not near")
    parser.add_argument("--batch-size", type=int, default=128, help="of one rank")
    parser.add_argument("--learning-rate", type=float, default=0.5, help="of one rank; multiplied by their number")
    parser.add_argument("--steps", type=int, default=3000, help="of one rank; divided by their number")
    parser.add_argument("--log-every", type=int, default=250, help="steps between two progress lines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sparse-as-dense", action="store_true", help="reduce the embeddings' gradients as dense ones")
    parser.add_argument("--save-vectors", help="npz file for the vectors; {rank} in it is replaced by the rank")
    return parser.parse_args()


def main():
    args = arguments()
    hvd.init()
    text, vocabulary = words.numbered(words.read(args.text), args.vocabulary_size)
    # Each rank reads a part of the text of its own.
    mine = np.array_split(text, hvd.size())[hvd.rank()]

    tf.set_random_seed(args.seed + hvd.rank())
    centers = tf.placeholder(tf.int32, [None], name="centers")
    near = tf.placeholder(tf.int32, [None, 1], name="near")
    shape = [len(vocabulary), args.embedding_size]
    embeddings = tf.get_variable("embeddings", shape, initializer=tf.random_uniform_initializer(-1.0, 1.0))
    nce_weights = tf.get_variable("nce_weights", shape, initializer=tf.truncated_normal_initializer(stddev=0.1))
    nce_biases = tf.get_variable("nce_biases", [len(vocabulary)], initializer=tf.zeros_initializer())
    vectors = tf.nn.embedding_lookup(embeddings, centers)
    loss = tf.reduce_mean(
        tf.nn.nce_loss(nce_weights, nce_biases, near, vectors, args.negatives, num_classes=len(vocabulary))
    )

    opt = tf.train.GradientDescentOptimizer(args.learning_rate * hvd.size())
    opt = hvd.DistributedOptimizer(opt, sparse_as_dense=args.sparse_as_dense)
    train_op = opt.minimize(loss)
    average_loss = hvd.allreduce(loss)

    normalized = tf.nn.l2_normalize(embeddings, 1)
    frequent = tf.constant([vocabulary.index(word) for word in ("function", "module", "integer") if word in vocabulary])
    similarity = tf.matmul(tf.gather(normalized, frequent), normalized, transpose_b=True)

    init = tf.global_variables_initializer()
    bcast = hvd.broadcast_global_variables(0)
    batches = words.skip_grams(mine, args.batch_size, args.window, args.seed + hvd.rank())
    steps = args.steps // hvd.size()
    with tf.Session(config=hvd.session_config()) as sess:
        sess.run(init)
        sess.run(bcast)
        losses = []
        for step in range(1, steps + 1):
            x, y = next(batches)
            _, loss_value = sess.run([train_op, average_loss], feed_dict={centers: x, near: y})
            losses.append(loss_value)
            if step % args.log_every == 0 and hvd.rank() == 0:
                print("step %d/%d  loss %.4f" % (step, steps, np.mean(losses[-args.log_every :])))

        if hvd.rank() == 0:
            for number, row in zip(sess.run(frequent), sess.run(similarity)):
                nearest = [vocabulary[other] for other in np.argsort(-row) if other not in (number, words.UNKNOWN)][:5]
                print("near %s: %s" % (vocabulary[number], ", ".join(nearest)))
        if args.save_vectors:
            np.savez(args.save_vectors.format(rank=hvd.rank()), embeddings=sess.run(embeddings))


if __name__ == "__main__":
    main()
