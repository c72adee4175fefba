"""The time that the matrix products of an update take alone, one after the other, in this process.

Over the time of the update, it says how much of it the products leave for everything else. The products are those that
the planner counts, `tftrain.plan.forecast.step_products`.
"""

import statistics
import time
from collections.abc import Callable

import tensorflow as tf

from tftrain.host.units import DTYPES
from tftrain.plan import forecast
from tftrain.plan.blocks import Product
from tftrain.plan.workload import Workload

IN_A_GRAPH = 4  # products in one call of a graph, one after the other
CALLS = 3  # of each graph; it has run once before
LARGEST = 2**24  # numbers of rows in an operand or a result; larger products are measured with fewer rows
DRAWN = 2**20  # random numbers, which operands repeat


def measure(work: Workload, attending: float = 1.0) -> float:
    """Runs each distinct product of an update of one rank, forward and backward; returns the seconds of all of them.

    With L equal layers, the measurement takes about 16 / L of the products' time. `attending` is the share of the pairs
    of tokens in a row that attend to each other, below 1 if rows are packed: products of the attention core count with
    this share of their time.
    """
    total, numbers = 0.0, tf.random.stateless_normal([DRAWN], [1, 2], dtype=DTYPES[work.precision])
    for product, forward, backward in forecast.step_products(work):
        forms, share = _forms(product), attending if product.core else 1.0
        for (shapes, transposed, scale), count in zip(forms, (forward, backward, backward), strict=True):
            total += share * count * scale * _seconds(*(_filled(shape, numbers) for shape in shapes), transposed)
    return total


def _forms(product: Product) -> list[tuple[tuple[list[int], list[int]], tuple[bool, bool], float]]:
    """Returns, for the forward product and the gradients of its operands: shapes, transposes, and a factor on the time.

    With y = x w: x w, dy w' and x' dy. The factor is above 1 where fewer rows than the product's are measured.
    """
    m, n, k = product.m, product.n, product.k
    rows = min(m, max(1, LARGEST // (max(n, k) * product.batch)))
    batch = [product.batch] if product.batch > 1 else []
    x, w, dy = ([*batch, *shape] for shape in ((rows, k), (k, n), (rows, n)))
    forms = ((x, w), (False, False)), ((dy, w), (False, True)), ((x, dy), (True, False))
    return [(*form, m / rows) for form in forms]


def _filled(shape: list[int], numbers: tf.Tensor) -> tf.Tensor:
    size = tf.TensorShape(shape).num_elements()
    return tf.reshape(tf.tile(numbers, [-(-size // DRAWN)])[:size], shape)


def _seconds(left: tf.Tensor, right: tf.Tensor, transposed: tuple[bool, bool]) -> float:
    """Returns the seconds of one product in a graph of several, the median over calls."""
    graph, operands = _back_to_back(left, right, transposed), [left, right] * IN_A_GRAPH
    graph(*operands).numpy()
    seconds = []
    for _ in range(CALLS):
        start = time.perf_counter()
        graph(*operands).numpy()  # waits until the device has the result
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) / IN_A_GRAPH


def _back_to_back(left: tf.Tensor, right: tf.Tensor, transposed: tuple[bool, bool]) -> Callable[..., tf.Tensor]:
    """Returns a graph of equal products, one after the other.

    A call takes as long as a small product, so with one product a call it would seem slower than in the step. Grappler
    computes equal products once and leaves out what nothing reads: so each has inputs of its own, and one of its
    numbers is added to the result.
    """

    @tf.function(autograph=False)
    def multiply(*operands):
        read: list[tf.Tensor] = []
        for x, w in zip(operands[::2], operands[1::2], strict=True):
            with tf.control_dependencies(read[-1:]):
                read.append(tf.reshape(tf.matmul(x, w, *transposed), [-1])[0])
        return tf.add_n(read)

    return multiply.get_concrete_function(
        *[tf.TensorSpec(each.shape, each.dtype) for each in (left, right)] * IN_A_GRAPH
    )
