"""PyTorch's fused or compiled counterparts of the fused ops, timed with CUDA events for tools/gpu_check.py."""

import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

REPEATS = 30
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def time_counterpart(op: str, which: str, dtype: str, shape: str) -> float | None:
    """Returns the seconds of PyTorch's counterpart of an op, or None if there is none.

    Args:
        op: as in gpu_check.py's table.
        which: "forward", "backward" or "update".
        dtype: of the tensors.
        shape: sizes joined by x.
    """
    torch.manual_seed(0)
    torch._dynamo.reset()
    if op == "adamw":
        seconds = _adamw(int(shape.split()[-1]))
    elif which in ("forward", "backward") and op in _FUNCTIONS:
        sizes = [int(size) for size in shape.split("x")]
        seconds = _function(*_FUNCTIONS[op](sizes, TYPES[dtype]), which)
    else:
        return None
    torch.cuda.empty_cache()  # JAX needs the rest
    return seconds


def time_attention(backend: str, which: str, dtype: str, form) -> float | None:
    """Returns the seconds of scaled_dot_product_attention, or None if the backend does not take the call.

    Args:
        backend: "flash" or "cudnn".
        which: "forward" or "backward".
        dtype: of the tensors.
        form: of tools/gpu_forms.py.
    """
    torch.manual_seed(0)
    chosen = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
    heads = [form.heads, *[form.key_heads or form.heads] * 2]
    inputs = [_random(form.batch, form.length, each, form.head_size, dtype=TYPES[dtype]) for each in heads]
    options = {"dropout_p": form.rate, "is_causal": form.causal, "enable_gqa": form.key_heads > 0}

    def run(*tensors):
        with sdpa_kernel(chosen):
            return F.scaled_dot_product_attention(*[tensor.transpose(1, 2) for tensor in tensors], **options)

    try:
        return _function(run, inputs, which)
    except RuntimeError:
        return None
    finally:
        torch.cuda.empty_cache()  # JAX needs the rest


def _random(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, device="cuda", dtype=dtype, requires_grad=True)


def _layer_norm(sizes, dtype):
    hidden = sizes[-1:]
    inputs = [_random(*sizes, dtype=dtype), _random(*hidden, dtype=dtype), _random(*hidden, dtype=dtype)]
    return lambda x, gamma, beta: F.layer_norm(x, hidden, gamma, beta, 1e-5), inputs


def _rms_norm(sizes, dtype):
    hidden = sizes[-1:]
    inputs = [_random(*sizes, dtype=dtype), _random(*hidden, dtype=dtype)]
    return torch.compile(lambda x, gamma: F.rms_norm(x, hidden, gamma, 1e-5)), inputs


def _attention_softmax(causal):
    def make(sizes, dtype):
        mask = torch.rand(sizes[0], 1, 1, sizes[3], device="cuda") < 0.9
        if causal:
            mask = mask & torch.ones(sizes[2:], dtype=torch.bool, device="cuda").tril()

        def run(scores):
            masked = torch.where(mask, scores.float() * 0.125, -torch.inf)
            return F.dropout(torch.softmax(masked, -1).to(dtype), 0.1, training=True)

        return torch.compile(run), [_random(*sizes, dtype=dtype)]

    return make


def _gelu(form):
    def make(sizes, dtype):
        return torch.compile(lambda x, bias: F.gelu(x + bias, approximate=form)), [
            _random(*sizes, dtype=dtype),
            _random(sizes[-1], dtype=dtype),
        ]

    return make


def _geglu(form):
    def make(sizes, dtype):
        def run(gate, up, gate_bias, up_bias):
            return F.gelu(gate + gate_bias, approximate=form) * (up + up_bias)

        tensors, biases = ([_random(*shape, dtype=dtype) for _ in range(2)] for shape in (sizes, sizes[-1:]))
        return torch.compile(run), [*tensors, *biases]

    return make


def _swiglu(sizes, dtype):
    return torch.compile(lambda gate, up: F.silu(gate) * up), [_random(*sizes, dtype=dtype) for _ in range(2)]


def _bias_dropout_add(sizes, dtype):
    def run(x, bias, residual):
        return residual + F.dropout(x + bias, 0.1, training=True)

    return torch.compile(run), [
        _random(*sizes, dtype=dtype),
        _random(sizes[-1], dtype=dtype),
        _random(*sizes, dtype=dtype),
    ]


_FUNCTIONS = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "attention_softmax": _attention_softmax(causal=False),
    "attention_softmax_causal": _attention_softmax(causal=True),
    "gelu": _gelu("none"),
    "gelu_tanh": _gelu("tanh"),
    "geglu": _geglu("none"),
    "geglu_tanh": _geglu("tanh"),
    "swiglu": _swiglu,
    "bias_dropout_add": _bias_dropout_add,
}


def _function(run, inputs, which):
    if which == "forward":
        return _median(lambda: run(*inputs))
    # Backward frees what it has used, so each repeat has a forward of its own, outside of the events.
    gradient = torch.randn_like(run(*inputs))
    return _median(lambda y: torch.autograd.grad(y, inputs, gradient), before=lambda: run(*inputs))


def _adamw(parameters):
    weight = torch.nn.Parameter(torch.randn(parameters, device="cuda"))
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.01, fused=True)

    def step():
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()

    return _median(step)


def _median(run, before=None):
    times = []
    for repeat in range(REPEATS + 5):
        given = () if before is None else (before(),)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(*given)
        end.record()
        end.synchronize()
        if repeat >= 5:
            times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)
