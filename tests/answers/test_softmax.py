import pytest
import torch

from offramp.answers.softmax import log_softmax, softmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 2), (32, 2), (7, 52), (3, 5, 9)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4, 1e30])
def test_probabilities_equal_those_of_torch(dtype, shape, scale):
    logits = scale * torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for dim in (-1, 1):
        assert torch.allclose(softmax(logits, dim), torch.softmax(logits, dim), atol=1e-6)
        assert torch.allclose(log_softmax(logits, dim), torch.log_softmax(logits, dim), atol=1e-5)


def test_ties_have_equal_probabilities():
    assert softmax(torch.tensor([[3.0, 3.0]])).tolist() == [[0.5, 0.5]]
