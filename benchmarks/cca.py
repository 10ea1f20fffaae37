"""Linear CCA between mean-pooled regions and tf-idf words: the usual score to filter pairs by."""

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from crcl.data.split import Split

WORDS, DIMENSIONS, RIDGE = 512, 128, 1e-2


def cca_similarities(pairs: Split) -> np.ndarray:
    """Cosine of each pair in the space of the largest correlations, fitted on these very pairs. (pairs,)"""
    images = np.stack([pairs.gather(np.array([image]))[0].mean(0) for image in range(pairs.images)])[pairs.image_index]
    words = TfidfVectorizer(min_df=4, sublinear_tf=True).fit_transform(list(pairs.captions))
    size = min(WORDS, words.shape[1] - 1)
    texts = TruncatedSVD(size, random_state=0).fit_transform(words)
    images, texts = whitened(images), whitened(texts)
    left, correlations, right = np.linalg.svd(images.T @ texts / len(pairs), full_matrices=False)
    weights = correlations[:DIMENSIONS]
    images, texts = images @ left[:, :DIMENSIONS] * weights, texts @ right[:DIMENSIONS].T * weights
    length = np.linalg.norm(images, axis=1) * np.linalg.norm(texts, axis=1)
    return (images * texts).sum(1) / np.maximum(length, 1e-12)


def whitened(values: np.ndarray) -> np.ndarray:
    """Centred, each direction of variance 1, up to a ridge."""
    values = values.astype(np.float64) - values.mean(0)
    variance, directions = np.linalg.eigh(values.T @ values / len(values))
    return values @ (directions / np.sqrt(variance + RIDGE * variance.mean()))
