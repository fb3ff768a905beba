"""Populations beside the oracle: each network as a training of its own.

A random one of the variants for many networks takes those that it can, in a random
configuration. The others train one after the other, by random covers as in `Fit`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from clnet import Population
from clnet.errors import ClnetWarning, DeviceError
from clnet.nn.storage.layout import live_elements
from clnet.opencl.device import Device
from clnet.planning.training_planner import TrainingPlan, plan_training
from clnet.training import member_training
from clnet.variants.members.group_members import GroupMembers, LaneMembers
from clnet.variants.members.members import TrainMembers, VectorMembers

from .cases import Case
from .check import (
    Fit,
    Oracle,
    Skipped,
    WrongError,
    arithmetic,
    batch,
    data,
    initial_state,
    lowered,
)

MEMBERS = (  # by the members, samples, subsets, and whether orders are alike
    lambda members, samples, subsets, alike: TrainMembers(members, subsets),
    lambda members, samples, subsets, alike: VectorMembers(
        members, alike and not subsets
    ),
    lambda members, samples, subsets, alike: GroupMembers(members, subsets),
    lambda members, samples, subsets, alike: LaneMembers(members, samples, subsets),
)


@dataclass(frozen=True)
class Member:
    """The training of one network."""

    case: Case  # Its training on its own samples
    rows: Any  # The numbers of its samples in the population's


def members_of(case: Case) -> list[Member]:
    """Return the trainings of a population's networks, drawn from the case's seed."""
    options = case.options
    assert options is not None
    found = []
    for number in range(options.members):
        rng = np.random.default_rng([case.seed, 5, number])
        rule, rows = options.rule, np.arange(options.samples)
        if options.subsets:
            rows = rng.permutation(rows)[: rng.integers(1, options.samples + 1)]
        if options.rates and hasattr(rule, "learning_rate"):
            rule = replace(rule, learning_rate=rule.rate * rng.choice([0.1, 0.5, 1, 2]))
        penalty = options.regularisation
        if options.penalties:
            l1, l2 = rng.choice([0, 0.5, 1, 2], 2) * (penalty.l1, penalty.l2)
            penalty = replace(penalty, l1=float(l1), l2=float(l2))
        factor = rng.choice([0, 0.5, 1]) if options.dropouts else 1.0
        found.append(Member(replace(
            case, seed=int(rng.integers(1 << 62)), batch=min(batch(case), len(rows)),
            layers=tuple(
                replace(layer, dropout=layer.dropout * factor) for layer in case.layers
            ),
            options=replace(
                options, rule=rule, samples=len(rows), batches=True,
                regularisation=penalty,
                epochs=int(rng.integers(1, options.epochs + 1)),
            ),
        ), rows))
    return found


class Populations(Fit):
    """`Population.fit`, its variant and plans replaced by random ones."""

    def __call__(self, case: Case) -> float:
        """Run a case, and return the largest error of a network over its bound."""
        options, network = case.options, self.network
        assert options is not None
        members = members_of(case)
        cases = [member.case for member in members]
        made = Population(network, len(members))
        made.dropout = np.array([[layer.dropout for layer in one.layers]
                                 for one in cases])
        made.parameters = [one.parameters(network) for one in cases]
        start = made.parameters
        arrays = list(data(case, lowered(case, network), network).values())
        x, t, *weight = arrays
        regular = options.regularisation
        penalties = [one.options.regularisation for one in cases]
        rates = [getattr(one.options.rule, "learning_rate", None) for one in cases]
        self.steps.clear()
        diverged = None
        try:
            with self._forced(case), self._together(case):
                histories = made.fit(
                    x, t, optimiser=options.rule, loss=options.loss,
                    learning_rate=rates if options.rates and rates[0] else None,
                    epochs=[one.options.epochs for one in cases],
                    batch_size=batch(case), shuffle=options.shuffled,
                    rows=[one.rows for one in members] if options.subsets else None,
                    sample_weight=weight[0][:, 0] if weight else None,
                    seed=[one.seed for one in cases], schedule=options.schedule,
                    validation=(x, t) if options.validation else None,
                    l1=[one.l1 for one in penalties], l2=[one.l2 for one in penalties],
                    clip_norm=regular.clip_norm, clip_value=regular.clip_value,
                    precision=case.precision, device=self._device,
                )
        except ClnetWarning as warning:
            if "timed out" in str(warning):
                raise Skipped("a wait timed out") from None
            diverged = str(warning)
        rounding = arithmetic(case, self.steps)
        live = live_elements(network.layout, network.storages)
        worst = 0.0
        for number, (member, one) in enumerate(zip(members, cases, strict=True)):
            own = [rows[member.rows] for rows in arrays]
            program = lowered(one, made[number])
            oracle = Oracle(
                one, program,
                {**{v.name: rows for v, rows in zip(program.inputs, own, strict=True)},
                 "state": initial_state(one, start[number])},
                start[number], rounding, *own[2:],
            )
            if diverged is not None:
                continue
            history, n = histories[number], len(member.rows)
            if len(history) != one.options.epochs:
                raise WrongError(f"fit ran {len(history)} epochs: {history.stopped}")
            last = history[-1].training
            worst = max(worst, oracle.check(
                {"parameters": made.parameters[[number]], "state": history.state.values,
                 "totals": np.array([[
                     last.loss * n, last.mse * n * network.n_out, last.bit_fail, 0, 0, 0
                 ]])},
                {"parameters": live, "state": live},
            ))
        if diverged is not None:  # and no network's oracle does
            raise WrongError(diverged)
        return worst

    @contextlib.contextmanager
    def _together(self, case: Case) -> Iterator[None]:
        """Replace the choice of the variant, and of its configuration."""
        rng = np.random.default_rng(case.cover)
        order, chosen = rng.permutation(len(MEMBERS)), int(rng.integers(1 << 31))
        name, config = case.only or ("", None)

        def variants(
            device: Device, members: int, samples: int, subsets: bool, alike: bool
        ) -> list[Any]:
            found = [MEMBERS[i](members, samples, subsets, alike) for i in order]
            return sorted(found, key=lambda one: one.name != name)

        def drawn(
            network: Any, program: Any, device: Device, batch: int,
            *, variants: list[Any], **options: Any,
        ) -> TrainingPlan:
            for variant in variants:  # the first that takes it
                with contextlib.suppress(DeviceError):
                    plan = plan_training(
                        network, program, device, batch, variants=[variant], **options
                    )
                    break
            else:
                raise DeviceError("no kernel takes it")
            (step,) = plan.steps
            configs = list(step.variant.space(step.span, step.device))
            known = config if config in configs else configs[chosen % len(configs)]
            self.steps.append(replace(step, config=known))
            return replace(plan, steps=(self.steps[-1],))

        with (
            mock.patch.object(member_training, "members_variants", variants),
            mock.patch.object(member_training, "plan_training", drawn),
        ):
            yield
