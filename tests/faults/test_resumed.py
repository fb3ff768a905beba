"""A training that is killed and resumed ends with the same bits."""

import pytest

from faults.resumed import differences

EPOCHS = 24


@pytest.mark.parametrize(("case", "every"), [
    ("shuffled", 1), pytest.param("sparse", 3, marks=pytest.mark.sweep),
])
def test_a_killed_training_that_resumes_ends_with_the_same_bits(case, every, tmp_path):
    """``python -m tests.faults.resumed`` kills many more, in all cases."""
    _, wrong = differences(case, tmp_path, every, EPOCHS, 1)
    assert wrong == []
