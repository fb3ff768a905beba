"""Forks of a process that uses OpenCL, and its end while threads compute."""

import os
import sys
import textwrap

import pytest
from children import child_environment, run_python
from waits import HANG_SECONDS

import clnet
from clnet.opencl import process
from clnet.opencl.store import Store

SETUP = f"HANG_SECONDS = {HANG_SECONDS:.0f}" + """
import os, signal, sys, threading, time
import numpy as np
import clnet
from clnet.opencl import process
from clnet.planning import inference

process.EXIT_SECONDS = HANG_SECONDS  # a build takes long on a busy machine
inference.CALL_SECONDS = float("inf")
x = np.random.default_rng(0).uniform(-1, 1, (64, 20)).astype(np.float32)
t = np.random.default_rng(1).uniform(-1, 1, (64, 10)).astype(np.float32)
network = clnet.Network.mlp([20, 300, 300, 10], "tanh", seed=1)
cpu = None

def compiled(name="naive"):
    return network.compile("cpu", 64, tune=False, variants=[name])

def forked(child):
    pid = os.fork()
    if pid == 0:
        signal.alarm(HANG_SECONDS)
        try:
            child()
        except clnet.DeviceError as error:
            print(error, flush=True)
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
REFUSED = (
    "this process was forked from one that had used OpenCL, whose threads are missing "
    "here: start it by spawn"
)
pytestmark = pytest.mark.usefixtures("cpu")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def run(script):
    # Python 3.12 warns of every fork of a process with threads.
    quiet = ["-W", "ignore::DeprecationWarning"]
    done = run_python(
        *quiet, "-c", SETUP + textwrap.dedent(script),
        # A fork while NumPy's threads compute may hang in its BLAS.
        env=child_environment(OPENBLAS_NUM_THREADS=1),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@forks
def test_a_fork_is_refused_in_a_sentence():
    """Whatever the child calls, and though another thread holds the plan's lock."""
    out = run("""
        plan = compiled()
        plan(x)
        cpu = clnet.device("cpu")
        network.predict(x, cpu)
        calls = [
            lambda: plan(x), lambda: plan.start(x), lambda: network.predict(x, cpu),
            lambda: network.predict(x), lambda: network.fit(x, t, epochs=1),
            lambda: network.evaluate(x, t), compiled, clnet.device, clnet.devices,
            lambda: network.predict(np.tile(x, (200, 1)), cpu),
            lambda: clnet.Network.mlp([3, 2]).predict(x[:, :3], cpu),
        ]
        ending = False

        def compute():
            while not ending:
                network.predict(x, cpu), plan(x)

        assert [forked(call) for call in calls] == [7] * len(calls)
        threading.Thread(target=compute).start()
        for _ in range(5):
            assert [forked(call) for call in calls[:3]] == [7] * 3
        ending = True
        print("right", plan(x).shape)
    """)
    *refusals, last = out.splitlines()
    assert last == "right (64, 10)"
    assert len(refusals) == 11 + 15
    assert all(line.startswith(REFUSED) for line in refusals)


@forks
def test_a_fork_before_the_first_use_computes():
    out = run("""
        import pyopencl
        network.prune(density=0.5)
        assert forked(lambda: compiled()(x)) == 0
        assert forked(lambda: network.fit(x, t, epochs=2, device="cpu")) == 0
        print(compiled()(x).shape)
    """)
    assert out == "(64, 10)\n"


@forks
def test_a_fork_that_does_not_compute_ends():
    out = run("""
        plan = compiled("cpu")
        plan(x)
        pid = os.fork()
        signal.alarm(HANG_SECONDS)
        if pid == 0:
            del plan, network
            sys.exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), plan(x).shape)
    """)
    assert out == "5 (64, 10)\n"


def test_spawned_processes_compute(tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(textwrap.dedent("""
        import multiprocessing
        import numpy as np
        import clnet

        def work(seed):
            network = clnet.Network.mlp([5, 3], seed=seed)
            return network.predict(np.ones((2, 5)), "cpu").shape

        if __name__ == "__main__":
            work(0)
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(work, range(2)))
    """))
    done = run_python(script)
    assert done.stdout == "[(2, 3), (2, 3)]\n", done.stderr


@pytest.mark.parametrize("calls", [
    ["compiled('naive')(x)", "compiled('cpu')(x)", "network.predict(x, 'cpu')"],
    ["network.fit(x, t, epochs=1000, device='cpu', tune=False)",
     "network.fit(x, t, epochs=1000, batch_size=8, device='cpu', tune=False)",
     "clnet.Network.mlp([20, 30, 10]).compile('cpu', 64, tune=True)"],
], ids=["predictions", "trainings"])
def test_the_process_ends_while_daemon_threads_compute(calls):
    """Their threads return from C++ when the interpreter is gone."""
    out = run(f"""
        def work(call):
            while True:
                eval(call)

        for call in {calls}:
            threading.Thread(target=work, args=(call,), daemon=True).start()
        time.sleep(1)
        print("end")
    """)
    assert out == "end\n"


def test_the_process_ends_while_daemon_threads_store_and_load(tmp_path):
    """A call that does not compute is waited for; the next one of the loop is not."""
    out = run(f"""
        from pathlib import Path
        from clnet.opencl.store import Store, Timing

        folder = Path({str(tmp_path)!r})
        path, data = folder / "x.net", folder / "x.npz"
        network = clnet.Network.mlp([20, 30, 10])
        network.predict(x, "cpu")
        network.save(path)
        clnet.save_data(data, x, t)
        store = Store(clnet.device("cpu"), folder)

        def work(call, done):
            while True:
                call()
                done.set()

        events = [threading.Event() for _ in range(5)]
        calls = [
            lambda: store.put("span", "key", Timing(1, 1, 1)),
            lambda: network.save(path), lambda: clnet.load(path),
            lambda: network.save(folder / "x.safetensors"),
            lambda: clnet.load_data(data),
        ]
        for call, done in zip(calls, events):
            threading.Thread(target=work, args=(call, done), daemon=True).start()
        for done in events:
            done.wait()
        begins = time.monotonic()
        process._end()
        print("waited", time.monotonic() - begins >= process.EXIT_SECONDS)
    """)
    assert out == "waited False\n"
    for suffix in ("net", "safetensors"):
        assert clnet.load(tmp_path / f"x.{suffix}").sizes == (20, 30, 10)
    assert Store(clnet.device("cpu"), tmp_path).get("span", "key") is not None


def test_the_last_frames_of_ending_threads_are_waited_for():
    """They hold OpenCL's objects."""
    out = run("""
        class Held:
            def __del__(self):
                time.sleep(0.2)
                print("dropped", flush=True)

        def work():
            held = Held()
            network.fit(
                x, t, epochs=10**6, callbacks=[lambda *_: started.set()], device="cpu",
                tune=False,
            )

        started = threading.Event()
        threading.Thread(target=work, daemon=True).start()
        started.wait()
        print("end", flush=True)
    """)
    assert out == "end\ndropped\n"


def test_handlers_at_exit_compute_and_finalizers_wait():
    """The main thread may use a plan until the end.

    Memory that threads drop waits for its commands until they have ended.
    """
    out = run("""
        import atexit, weakref
        held = lambda: None
        weakref.finalize(held, lambda: print(process._ends))
        plan = compiled()
        atexit.register(lambda: print(plan(x).shape, network.predict(x, "cpu").shape))
        plan(x)
    """)
    assert out.splitlines() == ["(64, 10) (64, 10)", "True"]


def test_a_thread_that_stays_inside_is_not_waited_for(monkeypatch):
    """A callback may block for ever."""
    out = run("""
        def wait(training, epoch):
            threading.Event().wait()

        threading.Thread(daemon=True, target=lambda: network.fit(
            x, t, epochs=2, callbacks=[wait], device="cpu"
        )).start()
        time.sleep(1)
        print("end")
    """)
    assert out == "end\n"


def test_only_frames_of_the_package_count():
    assert process._call(sys._getframe()) is None
    assert process._call(None) is None
