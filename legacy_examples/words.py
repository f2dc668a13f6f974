"""Text as numbers: the language reference that every Python carries, or a file such as text8."""

import collections
import re

import numpy as np

UNKNOWN = 0


def read(path=None):
    """Returns the words of a text file in lower case; without a path, of Python's own language reference."""
    if path:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    else:
        from pydoc_data.topics import topics

        text = "\n".join(topics[name] for name in sorted(topics))
    return re.findall(r"[a-z]+", text.lower())


def numbered(words, vocabulary_size):
    """Returns each word's number (int32 [count]) by frequency, 0 for rare ones, and the words by number."""
    frequent = collections.Counter(words).most_common(vocabulary_size - 1)
    vocabulary = ["?", *(word for word, _ in frequent)]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    return np.array([numbers.get(word, UNKNOWN) for word in words], np.int32), vocabulary


def skip_grams(numbers, batch_size, window, seed):
    """Yields batches of words (int32 [batch]) with a word near each (int32 [batch, 1]), forever."""
    random = np.random.RandomState(seed)
    distances = np.array([d for d in range(-window, window + 1) if d])
    while True:
        centers = random.randint(window, len(numbers) - window, batch_size)
        near = centers + random.choice(distances, batch_size)
        yield numbers[centers], numbers[near][:, np.newaxis]
