"""One XLA program with every fused op, called again and again, for tools/gpu_check.py.

On a GPU XLA records the program in CUDA graphs and replays them. If an op uses memory that it no longer owns, then its
result differs from call to call when other programs allocate in between, or it overwrites their arrays.
"""

import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

BATCH, SEQUENCE, HIDDEN, HEADS, LAYERS = 4, 96, 256, 2, 3
CALLS = 12
DROPOUT = {"drop_below": 6656, "seed": 1234567890123, "site": 3}
# Without these XLA would leave short sequences of ops out of CUDA graphs.
COMPILER_OPTIONS = {"xla_gpu_graph_min_graph_size": 1, "xla_gpu_enable_command_buffer": "FUSION,CUSTOM_CALL"}


def make_step(fused: Callable) -> Callable:
    """Returns a function of a training step's shape: layers of all ops forward and backward, norms, LAMB and AdamW.

    Args:
        fused: `fused` of tools/gpu_check.py.
    """
    f32 = jnp.float32
    x_spec, column, row = ((BATCH, SEQUENCE, HIDDEN), f32), ((HIDDEN,), f32), ((BATCH, SEQUENCE), f32)
    scores_spec = ((BATCH, HEADS, SEQUENCE, SEQUENCE), f32)
    softmax = {"scale": 0.125, "causal": False, **DROPOUT, "first_head": 0, "total_heads": HEADS, "dropouts": 1}

    def op(name, outputs, attributes=None, aliases=None):
        # No side effect, as in TensorFlow's programs: XLA may record and reorder the call.
        return fused(name, outputs, attributes or {}, aliases, has_side_effect=False)

    norm = op("TftrainLayerNorm", [x_spec, row, row], {"epsilon": 1e-5})
    norm_grad = op("TftrainLayerNormGrad", [x_spec, column, column])
    rms_norm = op("TftrainRmsNorm", [x_spec, row], {"epsilon": 1e-5})
    rms_norm_grad = op("TftrainRmsNormGrad", [x_spec, column])
    gelu = op("TftrainGelu", [x_spec], {"approximate": 0})
    gelu_grad = op("TftrainGeluGrad", [x_spec, column], {"approximate": 0})
    geglu = op("TftrainGeglu", [x_spec], {"approximate": 1})
    geglu_grad = op("TftrainGegluGrad", [x_spec, x_spec, column, column], {"approximate": 1})
    swiglu, swiglu_grad = op("TftrainSwiglu", [x_spec]), op("TftrainSwigluGrad", [x_spec, x_spec])
    rows = {**DROPOUT, "first_row": 0, "total_rows": SEQUENCE}
    add = op("TftrainBiasDropoutAdd", [x_spec], rows)
    add_grad = op("TftrainBiasDropoutAddGrad", [x_spec, column], rows)
    attention = op("TftrainAttentionSoftmax", [scores_spec, scores_spec], softmax)
    attention_grad = op("TftrainAttentionSoftmaxGrad", [scores_spec, scores_spec], softmax)
    head_spec, numbers = ((BATCH, SEQUENCE, HEADS, HIDDEN // HEADS), f32), ((BATCH, HEADS, SEQUENCE), f32)
    flash_attributes = {"scale": 0.1, "causal": False, "window": -1, **DROPOUT, "first_head": 0, "total_heads": HEADS}
    flash_attributes |= {"sequence_id_lists": 0, "slope_lists": 0}
    flash = op("TftrainFlashAttention", [head_spec, numbers], flash_attributes)
    flash_grad = op("TftrainFlashAttentionGrad", [head_spec] * 3, {**flash_attributes, "atomic": False})

    def scores_of(x):
        return x[:, None, :, :SEQUENCE] * jnp.arange(1, HEADS + 1, dtype=f32)[:, None, None]

    def layer(x, parameters, mask, position):
        gamma, beta, bias, gate_bias, up_bias, add_bias = parameters
        y, mean, rstd = norm(x, gamma, beta)
        probabilities, dropped = attention(scores_of(y), mask, position)
        z = gelu(y, bias)[0]
        gated = geglu(z, y, gate_bias, up_bias)[0]
        out = add(gated, add_bias, x, position)[0]
        out = out.at[..., :SEQUENCE].add(dropped.sum(1))
        heads = [array.reshape(head_spec[0]) for array in (y, z, gated)]  # query, key and value
        of_flash = flash(*heads, mask, position)
        out = swiglu(out + of_flash[0].reshape(x.shape), x)[0]
        normed, out_rstd = rms_norm(out, gamma)
        return normed, (x, y, mean, rstd, probabilities, z, heads, of_flash, out, out_rstd)

    def layer_gradients(dout, stored, parameters, mask, position):
        x, y, mean, rstd, probabilities, z, heads, of_flash, out, out_rstd = stored
        gamma, _beta, bias, gate_bias, up_bias, add_bias = parameters
        dout, drms_gamma = rms_norm_grad(dout, out, gamma, out_rstd)
        dout, dx_of_swiglu = swiglu_grad(dout, z, x)
        dgated, dadd_bias = add_grad(dout, add_bias, position)
        dheads = flash_grad(dout.reshape(head_spec[0]), *heads, *of_flash, mask, position)
        dquery, dkey, dvalue = (array.reshape(dout.shape) for array in dheads)
        dgated = dgated + dvalue
        dz, dy, dgate_bias, dup_bias = geglu_grad(dgated, z, y, gate_bias, up_bias)
        dy_of_gelu, dbias = gelu_grad(dz + dkey, y, bias)
        dscores = attention_grad(jnp.tanh(scores_of(dout)), probabilities, position)[0]
        dy = (dy + dy_of_gelu + dquery).at[..., :SEQUENCE].add(dscores.sum(1))
        dx, dgamma, dbeta = norm_grad(dy, x, gamma, mean, rstd)
        return dx + dout + dx_of_swiglu, [dgamma + drms_gamma, dbeta, dbias, dgate_bias, dup_bias, dadd_bias]

    total, parts = LAYERS * 6 * HIDDEN, LAYERS * 6
    flat, each = ((total,), f32), ((parts,), f32)
    update = {"epsilon": 1e-6, "tensors": 1, "segments": [HIDDEN] * parts}
    norms = op("TftrainSquaredNorms", [each])
    moments = op("TftrainLambMoments", [each, each, flat, flat], update, {3: 2, 4: 3})
    update = {**update, "copied": []}
    lamb = op("TftrainLambWeights", [flat], update, {5: 0})
    adamw = op("TftrainAdamW", [flat, flat, flat], update, {3: 0, 4: 1, 5: 2})

    def step(x, mask, position, weights, m, v):
        layers = weights.reshape(LAYERS, 6, HIDDEN)
        stored = []
        for parameters in layers:
            x, of_layer = layer(x, parameters, mask, position)
            stored.append(of_layer)
        dx, gradients = x / x.size, []
        for parameters, of_layer in zip(layers[::-1], stored[::-1], strict=True):
            dx, of_parameters = layer_gradients(dx, of_layer, parameters, mask, position)
            gradients = of_parameters + gradients
        squares = norms(*gradients)[0]
        scalars = jnp.array([1, 1e-3, 0.9, 0.999, -0.1, 1e-3, 5, 500], f32)
        scalars = scalars.at[0].set(1 / jnp.maximum(1, jnp.sqrt(squares.sum())))
        decays, gradient = jnp.full(parts, 0.01, f32), jnp.concatenate(gradients)
        weight_squares, update_squares, next_m, next_v = moments(scalars, decays, gradient, m, v, weights)
        rates = 1e-3 * jnp.sqrt(weight_squares / update_squares)
        by_lamb = lamb(scalars, decays, rates, next_m, next_v, weights)[0]
        return x, dx, gradient, squares, next_m, next_v, by_lamb, *adamw(scalars, decays, gradient, m, v, weights)

    return step


def make_inputs(seed: int) -> list[np.ndarray]:
    """Returns the arguments of a step."""
    random = np.random.default_rng(seed)
    total = LAYERS * 6 * HIDDEN
    mask = (random.random((BATCH, SEQUENCE)) < 0.9).astype(np.int32)
    x, weights, m, v = (
        random.standard_normal(shape).astype(np.float32)
        for shape in [(BATCH, SEQUENCE, HIDDEN), (total,), (total,), (total,)]
    )
    return [x, mask, np.array([3, 64], np.int64), 0.5 * weights, 0.1 * m, np.square(v) + np.float32(0.1)]


def is_near(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two results differ by rounding only, which grows over the layers."""
    return np.allclose(actual, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())


def check(fused: Callable, seed: int) -> int:
    """Calls the program with other allocations in between; returns the number of wrong calls.

    The first call is compared with the ops run one by one, and all others bit for bit with the first.

    Args:
        fused: `fused` of tools/gpu_check.py.
        seed: seed of the inputs.
    """
    step, arrays = make_step(fused), make_inputs(seed)
    inputs = [jnp.asarray(array) for array in arrays]
    compiled = jax.jit(step).lower(*inputs).compile(COMPILER_OPTIONS)
    one_by_one = [np.asarray(array) for array in step(*inputs)]
    random = np.random.default_rng(seed)
    held, first, wrong = [], [], 0  # held: (array, the value of all its elements)
    for call in range(CALLS):
        if call % 3 == 2:  # other addresses for the inputs too
            inputs = [jnp.asarray(array) for array in arrays]
        results = compiled(*inputs)
        # Arrays of other programs, while the call may still run: in memory that it freed, and again freed or not.
        held += [(jnp.full(int(size), call, np.float32), call) for size in random.integers(1, 1 << 20, 8)]
        results = [np.asarray(array) for array in results]
        problems = []
        if not first:
            first = results
            off = [i for i, pair in enumerate(zip(results, one_by_one, strict=True)) if not is_near(*pair)]
            problems += [f"results {off} differ from those of the ops run one by one"] if off else []
        off = [i for i, array in enumerate(results) if array.tobytes() != first[i].tobytes()]
        problems += [f"results {off} differ from those of call 0"] if off else []
        if not all((np.asarray(array) == value).all() for array, value in held):
            problems.append("an array of another program was overwritten")
        if problems:
            wrong += 1
            print(f"WRONG call {call} of a program with every op: {'; '.join(problems)}", file=sys.stderr)
        del held[::3]
    print(f"{CALLS - wrong} of {CALLS} calls of a program with every op are right", file=sys.stderr)
    return wrong
