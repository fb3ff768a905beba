"""A device's copy of a network's parameters: the flat buffer, packed ones, tables."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from clnet.opencl.memory import Action, Memory

if TYPE_CHECKING:
    from clnet.nn.model import Model
    from clnet.opencl.launch import Packed, Table
    from clnet.opencl.session import Session

Array = NDArray[Any]


class PackedMemory(Memory):
    """A buffer of packed parameters, and the launches that fill it.

    Attributes
    ----------
    refill : list of callable
        Enqueue the launches.
    sources : list of Memory
        The tables that the launches read, kept alive as long as the buffer.
    """

    def __init__(self, session: Session, size: int) -> None:
        super().__init__(session, size)
        self.refill: list[Action] = []
        self.sources: list[Memory] = []


class ParameterStore:
    """A device's copy of a network's parameters: the flat buffer, packed ones, tables.

    Attributes
    ----------
    host : ndarray
        The network's own array at `version`.
    version : int
        The network's version of the copy; -1: no copy yet.
    lock : threading.RLock
        Held while buffers are added or refilled.
    """

    def __init__(self, session: Session, network: Model) -> None:
        self._session = session
        self.memory = Memory(session, network.parameters.nbytes)
        self.host: Array = network.parameters
        self.version = -1
        self.lock = threading.RLock()
        # Executables hold the buffers that they use; the others are freed.
        self._tables: weakref.WeakValueDictionary[str, Memory] = (
            weakref.WeakValueDictionary()
        )
        self._packed: weakref.WeakValueDictionary[str, PackedMemory] = (
            weakref.WeakValueDictionary()
        )

    def table(self, table: Table) -> Memory:
        """Return the buffer of a constant array, uploaded at its first use."""
        memory = self._tables.get(table.key)
        if memory is None:
            values = table.make()
            memory = self._tables[table.key] = Memory(self._session, values.nbytes)
            memory.write(self._session, values)
        return memory

    def packed(self, packed: Packed) -> PackedMemory:
        """Return a packed buffer, made at its first use."""
        memory = self._packed.get(packed.key)
        if memory is None:
            memory = PackedMemory(self._session, packed.size)
            self._packed[packed.key] = memory
            self.version = -1
        return memory

    def refresh(self, network: Model) -> None:
        """Upload the parameters and refill packed buffers if the network changed."""
        with self.lock:
            if self.version == network.version:
                return
            self._session.finish()  # calls on device arrays may still be running
            version, self.host = network.version, network.parameters
            self.memory.write(self._session, self.host)
            for memory in list(self._packed.values()):
                for action in memory.refill:
                    action()
            self._session.finish()
            self.version = version


def parameter_store(session: Session, network: Model) -> ParameterStore:
    """Return the copy of a network's parameters on a session's device."""
    found: ParameterStore | None = session.parameter_stores.get(network)
    if found is None:
        found = session.parameter_stores[network] = ParameterStore(session, network)
    return found
