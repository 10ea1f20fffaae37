"""Offsets: the mean cosine with everything, as slow loops compute it, without the captions of decoys."""

import torch

from crcl.auditing.scores.offsets import offsets


def test_offsets_are_the_mean_cosines_with_all_captions_and_all_shown_images() -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = (
        torch.nn.functional.normalize(torch.randn(size, 8, generator=generator), dim=1) for size in (6, 13)
    )
    image_index = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 0, 1, 5])  # the last three are decoys; 5 only with one
    image, caption = offsets(images, texts, image_index, decoys=3)
    for pair in range(13):
        with_captions = sum(float(images[image_index[pair]] @ texts[other]) for other in range(10)) / 10
        with_images = sum(float(texts[pair] @ images[other]) for other in range(5)) / 5
        assert abs(float(image[pair]) - with_captions) < 1e-6
        assert abs(float(caption[pair]) - with_images) < 1e-6
