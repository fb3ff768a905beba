"""Names of `fit`'s arguments."""

import pytest

from clnet import Network, Population

NETWORK = Network.mlp([2, 3, 1], "tanh", seed=0)


@pytest.mark.parametrize(("fits", "where"), [
    (NETWORK, "Network"), (Population(NETWORK, 2), "Population"),
], ids=["network", "population"])
def test_a_misspelt_argument_is_told_the_nearest(fits, where):
    with pytest.raises(TypeError, match=(
        rf"^{where}\.fit\(\) got an unexpected keyword argument 'epoch': did you mean "
        r"'epochs'\?$"
    )):
        fits.fit([[-1, 1]], [1], epoch=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'qqq'"):
        fits.fit([[-1, 1]], [1], qqq=3)
