"""Names of activations, losses and optimisers in other libraries.

Each stands once, under its owner, beside clnet's own name of the same function. Names
that clnet shares with an owner are those of the rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from clnet.errors import InputError, known_row

FANN, KERAS, PYTORCH, SKLEARN = "FANN", "Keras", "PyTorch", "scikit-learn"
ACTIVATION, LOSS, OPTIMISER = "activation", "loss", "optimiser"

T = TypeVar("T")

_FANN_ACTIVATIONS = {
    "linear": "identity",
    "threshold": "threshold",
    "threshold_symmetric": "threshold_symmetric",
    "sigmoid": "sigmoid",
    "sigmoid_stepwise": "sigmoid_stepwise",
    "sigmoid_symmetric": "tanh",
    "sigmoid_symmetric_stepwise": "tanh_stepwise",
    "gaussian": "gaussian",
    "gaussian_symmetric": "gaussian_symmetric",
    "gaussian_stepwise": "gaussian_stepwise",
    "elliot": "elliot",
    "elliot_symmetric": "elliot_symmetric",
    "linear_piece": "linear_piece",
    "linear_piece_symmetric": "linear_piece_symmetric",
    "sin_symmetric": "sin_symmetric",
    "cos_symmetric": "cos_symmetric",
    "sin": "sin",
    "cos": "cos",
    "linear_piece_rect": "relu",
    "linear_piece_rect_leaky": "leaky_relu",
}

ALIASES: dict[str, dict[str, dict[str, str]]] = {
    ACTIVATION: {
        FANN: {
            **{name: ours for name, ours in _FANN_ACTIVATIONS.items() if name != ours},
            **{
                f"FANN_{name.upper()}": ours
                for name, ours in _FANN_ACTIVATIONS.items()
            },
        },
        KERAS: {"swish": "silu"},
        PYTORCH: {
            "ELU": "elu", "GELU": "gelu", "Hardtanh": "linear_piece_symmetric",
            "Hardswish": "hardswish", "Identity": "identity", "LeakyReLU": "leaky_relu",
            "LogSoftmax": "log_softmax", "Mish": "mish", "ReLU": "relu",
            "ReLU6": "clip(0, 6)", "SELU": "selu", "SiLU": "silu", "Sigmoid": "sigmoid",
            "Softmax": "softmax", "Softplus": "softplus",
            "Softsign": "elliot_symmetric", "Tanh": "tanh", "relu6": "clip(0, 6)",
            "hardtanh": "linear_piece_symmetric", "softsign": "elliot_symmetric",
        },
        SKLEARN: {"logistic": "sigmoid"},
    },
    LOSS: {
        FANN: {
            "FANN_ERRORFUNC_LINEAR": "fann_linear", "FANN_ERRORFUNC_TANH": "fann_tanh",
        },
        KERAS: {
            "binary_crossentropy": "binary_cross_entropy",
            "categorical_crossentropy": "categorical_cross_entropy",
            "mean_absolute_error": "mae", "mean_squared_error": "mse",
        },
        # Means over samples and outputs, by `reduction="mean"`, are clnet's too.
        PYTORCH: {
            "BCELoss": "binary_cross_entropy",
            "BCEWithLogitsLoss": "binary_cross_entropy",
            "CrossEntropyLoss": "categorical_cross_entropy",
            "HuberLoss": "huber", "L1Loss": "mae", "MSELoss": "mse",
            "NLLLoss": "categorical_cross_entropy", "SmoothL1Loss": "huber",
            "binary_cross_entropy_with_logits": "binary_cross_entropy",
            "cross_entropy": "categorical_cross_entropy",
            "huber_loss": "huber", "l1_loss": "mae", "mse_loss": "mse",
            "nll_loss": "categorical_cross_entropy", "smooth_l1_loss": "huber",
        },
        SKLEARN: {"absolute_error": "mae", "squared_error": "mse"},
    },
    OPTIMISER: {
        FANN: {
            f"FANN_TRAIN_{name.upper()}": name
            for name in ("incremental", "batch", "rprop", "quickprop", "sarprop")
        },
        PYTORCH: {
            "Adam": "adam", "AdamW": "adamw", "RMSprop": "rmsprop", "Rprop": "rprop",
            "SGD": "sgd",
        },
    },
}
"""clnet's name of each name of another library, by kind and owner."""

UNCLEAR: dict[str, dict[str, str]] = {
    ACTIVATION: {
        "Threshold": "PyTorch's takes a threshold and a value; FANN's step is "
        "'threshold'",
    },
    LOSS: {
        "log_loss": "scikit-learn's is 'binary_cross_entropy' for outputs of sigmoid, "
        "and 'categorical_cross_entropy' for those of softmax",
    },
    OPTIMISER: dict.fromkeys(
        ("LBFGS", "lbfgs"),
        "clnet has no L-BFGS; 'rprop' takes the whole training set a step too",
    ),
}
"""Names of others that have no clear meaning here, and why, by kind."""

_OWN_NAMES = {
    kind: {name: ours for names in owners.values() for name, ours in names.items()}
    for kind, owners in ALIASES.items()
}


def own_name(kind: str, name: object) -> object:
    """Return clnet's name for one of another library; any other name as it is.

    InputError: the name is one of `UNCLEAR`.
    """
    if not isinstance(name, str):
        return name
    if name in UNCLEAR[kind]:
        raise InputError(f"{kind} {name!r} is unclear: {UNCLEAR[kind][name]}")
    return _OWN_NAMES[kind].get(name, name)


def named_row(
    kind: str, name: object, rows: Mapping[str, T], others: Iterable[str] = ()
) -> T:
    """Return the row of a name, clnet's own or another library's; see `known_row`."""
    return known_row(kind, own_name(kind, name), rows, others)
