"""Outputs for scripts and shells: --json, completion; brief explanations."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli_output import ok, refused

import clnet
from clnet import Dense, Network
from clnet.cli import doctor, json_output
from clnet.cli.main import main, parser
from clnet.cli.summary import CHOSEN, OTHERS, brief, explained, sections_of
from clnet.formats import save_data
from clnet.planning import inference


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with a network and data; plans come from the cost model."""
    monkeypatch.chdir(tmp_path)
    compiled = inference.compile_network

    def compile_network(*arguments, tune=None, **rest):
        return compiled(*arguments, tune=False, **rest)

    monkeypatch.setattr(inference, "compile_network", compile_network)
    Network(3, [Dense(4, "tanh"), Dense(2, "softmax")], seed=0,
            classes=("no", "yes")).save("a.safetensors")
    rng = np.random.default_rng(0)
    save_data("a.data", rng.normal(size=(10, 3)), np.eye(2)[rng.integers(0, 2, 10)])
    save_data("bare.csv", rng.normal(size=(4, 3)), np.zeros((4, 0)))
    return tmp_path


def test_predict_and_evaluate(clnet_json):
    found = clnet_json("predict a.safetensors a.data")
    network, (x, t) = clnet.load("a.safetensors"), clnet.load_data("a.data")
    np.testing.assert_allclose(found["outputs"], network.predict(x), rtol=1e-5)
    assert found["labels"] == network.classify(x).tolist()
    assert found["classes"] == ["no", "yes"]
    assert found["accuracy"] == network.evaluate(x, t).accuracy
    evaluated = clnet_json("evaluate a.safetensors a.data")
    assert "outputs" not in evaluated
    assert evaluated == {name: found[name] for name in evaluated}
    assert np.sum(found["confusion"]) == 10
    bare = clnet_json("predict a.safetensors bare.csv --outputs 0")
    assert "mse" not in bare and len(bare["labels"]) == 4


def test_evaluate_is_for_targets(clnet_command):
    refused(clnet_command("evaluate a.safetensors bare.csv --outputs 0"),
            "no targets to compare the outputs with")
    out = ok(clnet_command("evaluate a.safetensors a.data"))
    assert "confusion: targets by row" in out


def test_train(clnet_json):
    found = clnet_json(
        "train a.data --layers 3-4-2 --epochs 3 --validation 0.2 --save b.net"
    )
    assert found["network"] == [3, 4, 2] and found["epochs"] == len(found["loss"]) == 3
    assert (found["training"]["samples"], found["validation"]["samples"]) == (8, 2)
    assert found["written"] == "b.net"
    assert found["stopped"] == "all 3 epochs are done"


def test_devices_and_explain(clnet_json):
    found = clnet_json("devices")["devices"]
    assert [one["index"] for one in found] == [d.index for d in clnet.devices()]
    found = clnet_json("explain a.safetensors")
    assert found["summary"].startswith("3-4-2, float32, batch 1") and found["chosen"]


def test_info(clnet_json):
    found = clnet_json("info a.safetensors")
    assert (found["network"], found["parameters"]) == ([3, 4, 2], 26)
    assert found["classes"] == ["no", "yes"] and found["fann"] is None
    assert [one["activation"] for one in found["layers"]] == ["tanh", "softmax"]
    assert sum(one["bytes"] for one in found["layers"]) == found["bytes"]
    x, _ = clnet.load_data("a.data")
    found = clnet_json("info a.data")
    assert found["samples"] == 10 and found["outputs"]["columns"] == 2
    assert found["inputs"] == {"columns": 3, "least": pytest.approx(x.min()),
                               "largest": pytest.approx(x.max()), "not_finite": 0}
    Path("table.csv").write_text("a,kind\n1,x\n2,y\n3,y\n")
    found = clnet_json("info table.csv --target kind")
    assert found["classes"] == {"x": 1, "y": 2}


def test_convert(clnet_json):
    assert clnet_json("convert a.safetensors c.safetensors") == {
        "network": [3, 4, 2], "written": "c.safetensors"}
    Network(2, [Dense(1, "tanh")], seed=0).save("b.net")
    assert clnet_json("info b.net")["fann"]["learning_rate"] == pytest.approx(0.7)
    assert clnet_json("convert a.data b.csv") == {
        "samples": 10, "inputs": 3, "outputs": 2, "written": "b.csv"}


def test_tune(clnet_json):
    plans = clnet_json("tune a.safetensors --batch 1,2")["plans"]
    assert [plan["batch"] for plan in plans] == [1, 2]
    assert all(plan["chosen"] for plan in plans)


def test_doctor(capsys, monkeypatch):
    findings = [doctor.Finding("a", True, "good"), doctor.Finding("b", False, "c", "d")]
    monkeypatch.setattr(doctor, "examine", lambda: iter(findings))
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "findings": [{"subject": "a", "ok": True, "found": "good", "cure": ""},
                     {"subject": "b", "ok": False, "found": "c", "cure": "d"}],
        "faults": 1,
    }


def test_numbers_of_json(capsys):
    json_output.show({"a": np.float32(0.5), "b": [np.nan, -np.inf], "c": np.eye(1, 2),
                      "d": (np.int64(3), np.bool_(1), "é", None)})
    assert capsys.readouterr().out == (
        '{"a": 0.5, "b": [null, null], "c": [[1.0, 0.0]], "d": [3, true, "é", null]}\n'
    )


# --- explanations --------------------------------------------------------------------

ROWS = "\n".join(f"{i}-{i} product  cpu\n                 more" for i in range(20))
TEXT = f"""\
sizes: 3 us
and more.

chosen
layers  variant
1-2     cpu

whole covers that lost
  75.4 us  4 x host
   293 ms  2 x cpu
           on the device
     5 ns  1 x a
    1.5 s  1 x b

spans that lost
layers  variant
{ROWS}

refused
  a (1): it needs
    more
  b: failed: it gives wrong results
  c (2): no"""


def test_sections():
    titles = [section.title for section in sections_of(TEXT)]
    assert titles == ["sizes: 3 us\nand more.", "chosen", "whole covers that lost",
                      "spans that lost", "refused"]
    counts = [len(section.entries) for section in sections_of(TEXT)]
    assert counts == [0, 1, 4, 20, 3]
    found = explained(TEXT)
    assert found["summary"] == "sizes: 3 us and more."
    assert found["whole covers that lost"][1] == "293 ms 2 x cpu on the device"


def test_brief_explanations():
    text = brief(TEXT)
    assert text.startswith("sizes: 3 us\nand more.\n\nchosen\nlayers  variant\n1-2 ")
    assert f"whole covers that lost ({4 - OTHERS} more)\n" in text
    assert "refused (2 more)\n  b: failed: it gives wrong results" in text
    assert "scipy" not in text and text.endswith("\n\n--all shows the rest.")
    assert "3-3 product" not in text
    long = TEXT.replace("1-2     cpu", ROWS)
    assert f"chosen ({20 - 3} more)" in brief(long) and CHOSEN > 3
    assert brief("a\n\nchosen\n1-2 x") == "a\n\nchosen\n1-2 x"


# --- completion ----------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completions(shell):
    shtab = pytest.importorskip("shtab")
    script = shtab.complete(parser(), shell)
    for word in ("evaluate", "--target", "--json"):
        assert word in script


def test_completion_in_bash(tmp_path):
    shtab = pytest.importorskip("shtab")
    (tmp_path / "clnet.bash").write_text(shtab.complete(parser(), "bash"))

    def completed(*words):
        line = " ".join(f"'{word}'" for word in words)
        done = subprocess.run(
            ["bash", "-c", f"source clnet.bash; COMP_WORDS=({line}); "
             f"COMP_CWORD={len(words) - 1}; _shtab_clnet; echo ${{COMPREPLY[@]}}"],
            cwd=tmp_path, text=True, stdout=subprocess.PIPE, check=True,
        )
        return done.stdout.split()

    assert completed("clnet", "ev") == ["evaluate"]
    assert completed("clnet", "train", "--targ") == ["--target"]
    assert completed("clnet", "predict", "a.saf") == ["a.safetensors"]


@pytest.mark.parametrize(("line", "sentence"), [
    ("train a.data --layers 3-2 --optimiser incremental --batch-size 3",
     "clnet: incremental trains with a --batch-size of 1, not 3"),
    ("train a.data --layers 3-2 --desired-error -1",
     "clnet: --desired-error must be a number of at least 0: -1.0"),
    ("train a.data --layers 3-2 --clip-norm -1", "clnet: --clip-norm must be"),
    ("evaluate a.safetensors bare.csv", "see --target and --outputs"),
])
def test_messages_name_options(clnet_command, line, sentence):
    result = clnet_command(line)
    refused(result, sentence)
    assert "_" not in result[2]
