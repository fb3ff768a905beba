"""Fixtures of the estimators' tests."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def kept_plans(modelled_training):
    """Keep plans, as `fit` does: estimators are trained many times."""
    from clnet.planning.training_planner import plan_training
    from clnet.training import plans

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "plan_training", plan_training)
        yield
