"""Histories of many trainings side by side, each made when it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError, counted
from clnet.formats.files import as_path, check_writable, write
from clnet.formats.pictures import drawn, svg
from clnet.nn.notebook import html_table
from clnet.runtime.member_replay import TOTAL, MemberLaunch
from clnet.training.history import History
from clnet.training.passes import measures

Array = NDArray[Any]

SHOWN = 10  # networks of a notebook's table
BAND = (0.05, 0.5, 0.95)  # quantiles of a picture
MOST_LINES = 100  # of single networks in it
REPORT = ".html"
STYLE = (
    "body { font-family: sans-serif; max-width: 60em; margin: auto; padding: 1em } "
    "svg { width: 100%; height: auto } "
    "td, th { padding: 0.1em 0.8em; text-align: left }"
)


class Histories(Sequence[History]):
    """The histories of a population's networks, each made when it is first read."""

    def __init__(self, count: int, make: Callable[[int], History]) -> None:
        self._count, self._make = count, make
        self._made: dict[int, History] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> History: ...

    @overload
    def __getitem__(self, index: slice) -> list[History]: ...

    def __getitem__(self, index: int | slice) -> History | list[History]:
        chosen = range(self._count)[index]
        if isinstance(chosen, range):
            return [self[i] for i in chosen]
        if chosen not in self._made:
            self._made[chosen] = self._make(chosen)
        return self._made[chosen]

    def __repr__(self) -> str:
        return f"<Histories of {counted(len(self), 'network')}>"

    def _repr_html_(self) -> str:
        return self._table(SHOWN)

    def plot(
        self, path: str | PathLike[str] | None = None, *, axes: Any = None
    ) -> Any:
        """Draw the learning curves: the median of all networks, and a band of 90 %.

        Parameters and errors are those of `History.plot`. Networks that have stopped
        are out of the band.
        """
        return drawn(self._draw, path, axes)

    def report(self, path: str | PathLike[str]) -> None:
        """Write a page with the learning curves and a table of all networks."""
        file = report_file(path)
        text = (
            '<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
            f"<title>{counted(len(self), 'network')}</title>\n"
            f"<style>{STYLE}</style>\n{svg(self._draw)}\n{self._table(len(self))}\n"
            "</html>\n"
        )
        write(file, [text.encode()])

    def _table(self, most: int) -> str:
        """Return the table of some networks as HTML, the smallest loss first."""
        validated = any(one.validation_loss for one in self)
        losses = [one.final_loss(validation=validated) for one in self]
        order = np.argsort(losses, kind="stable")[:most].tolist()
        name = "validation loss" if validated else "loss"
        return html_table(
            f"{counted(len(self), 'network')}, the smallest {name} first",
            ("network", "epochs", name, "stopped"),
            ((i, len(self[i]), f"{losses[i]:.4g}", self[i].stopped) for i in order),
        )

    def _draw(self, axes: Any) -> None:
        curves = {
            "training": [history.loss for history in self],
            "validation": [history.validation_loss for history in self],
        }
        positive = True
        for label, losses in curves.items():
            low, middle, high = band(losses)
            if not middle.size:
                continue
            epochs = np.arange(1, middle.size + 1)
            mark = "." if middle.size == 1 else ""
            line, = axes.plot(epochs, middle, mark, label=label)
            colour = line.get_color()
            for one in losses[:MOST_LINES]:
                axes.plot(
                    epochs[: len(one)], one, color=colour, alpha=0.15, linewidth=0.5
                )
            axes.fill_between(epochs, low, high, color=colour, alpha=0.25, linewidth=0)
            positive &= bool((np.nan_to_num(low, nan=1.0) > 0).all())
        if any(curves["validation"]):
            axes.legend(loc="upper right")
        if positive:
            axes.set_yscale("log")
        axes.set_xlabel("epoch")
        least, _, most = (f"{100 * quantile:g}" for quantile in BAND)
        axes.set_ylabel(
            f"loss of {counted(len(self), 'network')}, {least} to {most} %"
        )

    def __reduce__(self) -> Any:
        listed = list(self)
        return Histories, (len(listed), listed.__getitem__)


def band(losses: Sequence[Sequence[float]]) -> Array:
    """Return the quantiles [3, epochs] of curves that may end early."""
    curves = np.full((len(losses), max(map(len, losses), default=0)), np.nan)
    for row, one in zip(curves, losses, strict=True):
        row[: len(one)] = one
    curves[~np.isfinite(curves)] = np.nan
    quantiles = np.full((len(BAND), curves.shape[1]), np.nan)
    some = ~np.isnan(curves).all(axis=0)
    quantiles[:, some] = np.nanquantile(curves[:, some], BAND, axis=0)
    return quantiles


def report_file(path: str | PathLike[str]) -> Path:
    """Return the file of a report."""
    file = as_path(path)
    if file.suffix.lower() != REPORT:
        raise InputError(f"{file}: reports are {REPORT}, not {file.suffix!r}")
    check_writable(file)
    return file


class MemberLog:
    """The totals of all epochs of a group of networks, as its launches gave them."""

    def __init__(self, count: int, most: int) -> None:
        self._most = most
        self.done: Array = np.zeros(count, int)  # Epochs of each network
        self._launches: list[tuple[Array, MemberLaunch, float]] = []
        # Of epochs with a validation: totals of both and seconds, by epoch.
        self._checked = np.zeros((count, 0, 2 * TOTAL + 1), np.float32)

    def add(
        self, members: Array, launch: MemberLaunch, checked: MemberLaunch | None,
        seconds: float,
    ) -> None:
        """Add a launch of some networks [active], and that of their validation if any.

        `seconds` is the time of an epoch; one with a validation is alone.
        """
        if checked is not None:
            self._add_checked(members, launch.last, checked.last, seconds)
        else:
            self._launches.append((members, launch, seconds))
            if sum(one.size for _, one, _ in self._launches) > self._most:
                for _, one, _ in self._launches:
                    one.totals()
        self.done[members] += launch.ran

    def _add_checked(
        self, members: Array, training: Array, validation: Array, seconds: float
    ) -> None:
        """Add totals [active, 6] of an epoch."""
        done = self.done[members]
        last = int(done.max())
        if last >= self._checked.shape[1]:
            shape = len(self.done), last + 1, 2 * TOTAL + 1
            more = np.zeros(shape, np.float32)
            self._checked = np.concatenate([self._checked, more], axis=1)
        self._checked[members, done] = np.column_stack(
            [training, validation, np.full(len(members), seconds)]
        )

    def fill(self, history: History, number: int, targets: Array) -> None:
        """Add a network's epochs to its history."""
        epochs = int(self.done[number])
        if self._checked.size:
            rows = self._checked[number, :epochs]
            history.epochs.add(
                measures(rows[:, :TOTAL], *targets[0]),
                measures(rows[:, TOTAL:-1], *targets[1]), rows[:, -1],
            )
            return
        for members, launch, seconds in self._launches:
            at = int(np.searchsorted(members, number))
            if at < len(members) and members[at] == number:
                # An interrupt may have come before the last launch was counted.
                totals = launch.totals_of(at)[: epochs - len(history)]
                history.epochs.add(measures(totals, *targets[0]), None, seconds)
