"""Sentence embeddings of texts, by the bundled model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hamr.backends.models import resolve_model

EMBEDDING_MODEL = "all-minilm-l6-v2"


def embed(texts: Sequence[str], *, threads: int) -> NDArray[np.float32]:
    """Return the embeddings of the texts, (n, d), of unit length, in the order of the texts.

    Raises:
        BadInput: the model is not installed.
    """
    folder = resolve_model(EMBEDDING_MODEL)
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    vectors = model.encode(list(texts), batch_size=64, show_progress_bar=False, normalize_embeddings=True)
    return np.asarray(vectors, dtype=np.float32)
