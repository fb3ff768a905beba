"""A device's copy of a network's parameters: the flat buffer, packed ones, tables."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clnet.errors import InputError
from clnet.opencl.memory import Memory, filled_memory
from clnet.runtime.turn import release

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.opencl.commands import Action
    from clnet.opencl.launch import Constant, Packed
    from clnet.opencl.session import Session

Array = NDArray[Any]

NO_PARAMETERS = np.empty(0)


class PackedMemory(Memory):
    """A buffer of packed parameters, and the launches that fill it."""

    def __init__(self, session: Session, size: int) -> None:
        super().__init__(session, size)
        self.refill: list[Action] = []
        self.sources: list[Memory] = []


class ParameterReader(Protocol):
    """An executable that reads the buffers."""

    enqueuing: threading.RLock

    def wait_for_helpers(self) -> None:
        """Wait for helpers that outlast the enqueued runs."""


class ParameterStore:
    """A copy of a network's parameters: the flat buffer, packed ones, tables."""

    def __init__(self, session: Session, network: Model) -> None:
        self._session = session
        self.count: int = network.parameters.size
        self.memory: Memory = Memory(session, network.parameters.nbytes)
        self.parameters: Array = NO_PARAMETERS
        self.lock: threading.RLock = threading.RLock()
        self._readers: weakref.WeakSet[ParameterReader] = weakref.WeakSet()
        # Executables hold the buffers that they use; the others are freed.
        self._tables: weakref.WeakValueDictionary[str, Memory] = (
            weakref.WeakValueDictionary()
        )
        self._packed: weakref.WeakValueDictionary[str, PackedMemory] = (
            weakref.WeakValueDictionary()
        )

    def table(self, table: Constant) -> Memory:
        """Return the buffer of a constant array, uploaded at its first use."""
        memory = self._tables.get(table.name)
        if memory is None:
            memory = filled_memory(self._session, table.make())
            self._tables[table.name] = memory
        return memory

    def packed(self, packed: Packed) -> PackedMemory:
        """Return a packed buffer, made at its first use."""
        memory = self._packed.get(packed.name)
        if memory is None:
            memory = PackedMemory(self._session, packed.size)
            self._packed[packed.name] = memory
            self.parameters = NO_PARAMETERS
        return memory

    def add_reader(self, reader: ParameterReader) -> None:
        """Let `filled` wait for a reader of the buffers; `lock` is held."""
        self._readers.add(reader)

    @contextmanager
    def filled(self, parameters: Array) -> Iterator[None]:
        """Fill all buffers by a network's array, which they hold inside the context.

        No reader enqueues a run meanwhile, so that none reads old and new parameters.
        """
        if parameters.size != self.count:
            raise InputError(
                f"this plan is of {self.count} parameters, and the network, which has "
                f"{parameters.size}, has grown since: compile it again"
            )
        with self.lock, ExitStack() as held:
            readers = list(self._readers)
            for reader in readers:
                held.callback(release, reader.enqueuing)  # whatever interrupts this
                reader.enqueuing.acquire()
            self.parameters = NO_PARAMETERS  # until all buffers are filled
            self._session.finish()
            for reader in readers:
                reader.wait_for_helpers()
            self.memory.write(self._session, parameters)
            for memory in list(self._packed.values()):
                for action in memory.refill:
                    action()
            self._session.finish()
            self.parameters = parameters
            yield


def parameter_store(session: Session, network: Model) -> ParameterStore:
    """Return the copy of a network's parameters on a session's device."""
    store: ParameterStore | None = session.parameter_stores.get(network)
    if store is None or store.count != network.parameters.size:
        store = session.parameter_stores[network] = ParameterStore(session, network)
    return store
