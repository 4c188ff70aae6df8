"""Laws of the norm, rope and activation references, against plain formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from plumbline_kernels.norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from plumbline_kernels.rope_kv import HeadNorms, plan_rope, rope_kv_write
from plumbline_kernels.swiglu import (
    gelu,
    gelu_erf,
    gelu_erf_mul,
    gelu_mul,
    relu,
    relu2,
    silu_mul,
    xielu_torch,
)

torch.set_num_threads(1)
DTYPES = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1.6e-2), (torch.float16, 2e-3)], ids=str
)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@DTYPES
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_rms_norm_divides_by_the_root_mean_square(dtype: torch.dtype, tolerance: float, rows: int) -> None:
    x, weight = randn(rows, 40, dtype=dtype) * 5, randn(40, seed=1, dtype=dtype)
    exact = x.double()
    expected = exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()
    out = rms_norm(x, weight, 1e-3)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


def test_a_row_of_zeros_stays_zero_and_large_rows_do_not_overflow() -> None:
    x = torch.stack((torch.zeros(16), torch.full((16,), 1e18)))
    torch.testing.assert_close(rms_norm(x, torch.ones(16), 1e-6), torch.tensor([[0.0], [1.0]]).expand(2, 16))


@DTYPES
def test_the_fused_norm_is_the_add_and_then_the_norm(dtype: torch.dtype, tolerance: float) -> None:
    x, residual, weight = (randn(5, 40, seed=s, dtype=dtype) for s in range(3))
    weight = weight[0]
    total = x + residual
    normed, updated = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(updated, total)
    assert torch.equal(normed, rms_norm(total, weight, 1e-5))


@DTYPES
@pytest.mark.parametrize("shift", [False, True])
def test_layer_norm_gives_rows_of_mean_0_and_variance_1(
    dtype: torch.dtype, tolerance: float, shift: float
) -> None:
    x, weight = randn(6, 40, dtype=dtype) * 5 + 2, randn(40, seed=1)
    bias = randn(40, seed=2) if shift else None
    centred = x.double() - x.double().mean(-1, keepdim=True)
    expected = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()
    expected = expected if bias is None else expected + bias.double()
    out = layer_norm(x, weight, bias, 1e-3)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=2 * tolerance, rtol=tolerance)


@DTYPES
def test_a_fused_norm_adds_what_the_factor_makes_of_x(dtype: torch.dtype, tolerance: float) -> None:
    x, residual, weight = (randn(5, 40, seed=s, dtype=dtype) for s in range(3))
    weight = weight[0]
    total = (residual.double() + 0.25 * x.double()).to(dtype)
    for normed, updated, expected in (
        (*add_rms_norm(x, residual.clone(), weight, 1e-5, 0.25), rms_norm(total, weight, 1e-5)),
        (
            *add_layer_norm(x, residual.clone(), weight, None, 1e-5, 0.25),
            layer_norm(total, weight, None, 1e-5),
        ),
    ):
        torch.testing.assert_close(updated, total, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(normed, expected, atol=2 * tolerance, rtol=2 * tolerance)


@DTYPES
def test_gelu_mul_gates_with_the_normal_distribution(dtype: torch.dtype, tolerance: float) -> None:
    """The approximation with tanh differs from the distribution function by less than 0.001."""
    gate_up = randn(6, 34, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, -1)
    expected = gate * torch.special.ndtr(gate) * up
    torch.testing.assert_close(
        gelu_mul(gate_up).double(), expected, atol=tolerance * 4 + 0.01, rtol=tolerance
    )


@DTYPES
def test_activations_without_a_gate_are_their_formulas(dtype: torch.dtype, tolerance: float) -> None:
    """The approximation of gelu with tanh differs from the distribution function by less than 0.001."""
    x = randn(6, 34, dtype=dtype) * 4
    wide = x.double()
    torch.testing.assert_close(
        gelu(x).double(), wide * torch.special.ndtr(wide), atol=tolerance * 4 + 0.01, rtol=tolerance
    )
    torch.testing.assert_close(relu2(x).double(), wide.clamp(min=0) ** 2, atol=tolerance, rtol=tolerance)
    assert torch.equal(relu(x), x.clamp(min=0))


@DTYPES
def test_a_gelu_by_the_error_function_is_the_distribution_function(
    dtype: torch.dtype, tolerance: float
) -> None:
    x = torch.linspace(-9, 9, 2 * 34 * 6).view(6, -1).to(dtype)
    wide = x.double()
    expected = wide * torch.special.ndtr(wide)
    torch.testing.assert_close(gelu_erf(x).double(), expected, atol=max(tolerance, 2e-6), rtol=tolerance)
    gate, up = expected.chunk(2, -1)[0], wide.chunk(2, -1)[1]
    torch.testing.assert_close(gelu_erf_mul(x).double(), gate * up, atol=max(tolerance, 2e-5), rtol=tolerance)


@DTYPES
def test_a_xielu_is_its_formula(dtype: torch.dtype, tolerance: float) -> None:
    x = torch.linspace(-9, 9, 68).view(2, -1).to(dtype)
    wide = x.double()
    expected = torch.where(wide > 0, 0.8 * wide**2, 0.7 * (wide.clamp(max=-1e-6).expm1() - wide)) + wide / 2
    found = xielu_torch(x, torch.tensor([0.8, 0.7, 0.5, -1e-6]))
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


@DTYPES
def test_silu_mul_gates_the_second_half_with_the_first(dtype: torch.dtype, tolerance: float) -> None:
    gate_up = randn(6, 34, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, -1)
    expected = gate * torch.sigmoid(gate) * up
    torch.testing.assert_close(silu_mul(gate_up).double(), expected, atol=tolerance * 4, rtol=tolerance)


def caches(kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = (torch.full((6, 4, kv_heads, head_dim), 99.0, dtype=dtype) for _ in "kv")
    return k, v


@DTYPES
@pytest.mark.parametrize("norms", [False, True])
def test_rope_kv_write_rotates_halves_and_writes_each_row_to_its_slot(
    dtype: torch.dtype, tolerance: float, norms: str
) -> None:
    """Heads, normalised first if they have norm weights, rotate like complex numbers; padding is not written."""
    heads, kv_heads, head_dim, tokens = 4, 2, 8, 5
    qkv = randn(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    angles = randn(30, head_dim // 2, seed=2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    positions, slots = torch.tensor([0, 29, 3, 3, 11]), torch.tensor([5, -1, 23, 0, -1])
    weights = (randn(head_dim, seed=3, dtype=dtype), randn(head_dim, seed=4, dtype=dtype))
    k_cache, v_cache = caches(kv_heads, head_dim, dtype)

    q = rope_kv_write(
        qkv,
        cos_sin,
        positions,
        slots,
        k_cache,
        v_cache,
        heads,
        kv_heads,
        HeadNorms(torch.stack([weights[0]] * heads + [weights[1]] * kv_heads)) if norms else None,
    )

    rows = qkv.double().view(tokens, -1, head_dim)
    parts = {"q": rows[:, :heads], "k": rows[:, heads : heads + kv_heads]}
    if norms:
        for (name, part), weight in zip(parts.items(), weights, strict=True):
            parts[name] = F.rms_norm(part, (head_dim,), weight.double(), 1e-6)
    turn = torch.polar(torch.ones_like(angles), angles).to(torch.complex128)[positions].unsqueeze(1)
    for name, part in parts.items():
        turned = torch.complex(part[..., : head_dim // 2], part[..., head_dim // 2 :]) * turn
        parts[name] = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(q.double(), parts["q"], atol=tolerance * 3, rtol=tolerance)
    written = {5: 0, 23: 2, 0: 3}
    for slot in range(24):
        key, value = k_cache[slot // 4, slot % 4].double(), v_cache[slot // 4, slot % 4].double()
        if slot in written:
            torch.testing.assert_close(key, parts["k"][written[slot]], atol=tolerance * 3, rtol=tolerance)
            assert torch.equal(value, rows[written[slot], heads + kv_heads :])
        else:
            assert (key == 99).all()
            assert (value == 99).all()


@pytest.mark.parametrize("kind", ["centred", "whole", "after"])
@pytest.mark.parametrize("rotates", [False, True])
def test_heads_are_normalised_alone_or_together_before_the_rotation_or_after_it(
    kind: str, rotates: str
) -> None:
    heads, kv_heads, head_dim, tokens = 4, 2, 8, 3
    qkv, weights = randn(tokens, 8 * head_dim), randn(heads + kv_heads, head_dim, seed=3)
    angles, positions = randn(30, head_dim // 2, seed=2), torch.tensor([0, 29, 3])
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1) if rotates else None
    k_cache, v_cache = caches(kv_heads, head_dim, torch.float32)
    norms = HeadNorms(weights, 1e-6, **{kind: True})
    q = rope_kv_write(qkv, cos_sin, positions, torch.arange(3), k_cache, v_cache, heads, kv_heads, norms)

    def turned(x: torch.Tensor) -> Any:
        if not rotates:
            return x
        turn = torch.polar(torch.ones_like(angles), angles)[positions].unsqueeze(1)
        pairs = torch.complex(x[..., : head_dim // 2], x[..., head_dim // 2 :]) * turn
        return torch.cat((pairs.real, pairs.imag), -1)

    rows = qkv.view(tokens, -1, head_dim)
    for got, x, weight in (
        (q, rows[:, :heads], weights[:heads]),
        (k_cache.view(-1, kv_heads, head_dim)[:3], rows[:, heads : heads + kv_heads], weights[heads:]),
    ):
        if kind == "centred":
            expected = turned(F.layer_norm(x, (head_dim,)) * weight)
        elif kind == "whole":
            expected = turned(F.rms_norm(x.flatten(1), (x[0].numel(),), eps=1e-6).view(x.shape) * weight)
        else:
            expected = F.rms_norm(turned(x), (head_dim,), eps=1e-6) * weight
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_a_temperature_multiplies_the_queries_of_its_position() -> None:
    qkv, cos_sin, factors = randn(3, 6 * 8), randn(10, 8, seed=1), randn(10, seed=2)
    positions, slots = torch.tensor([1, 2, 9]), torch.tensor([4, -1, 6])
    results = []
    for temperature in (None, factors):
        k_cache, v_cache = caches(1, 8, torch.float32)
        q = rope_kv_write(qkv, cos_sin, positions, slots, k_cache, v_cache, 4, 1, temperature=temperature)
        results.append((q, k_cache))
    torch.testing.assert_close(results[1][0], results[0][0] * factors[positions][:, None, None])
    assert torch.equal(results[0][1], results[1][1])


def test_a_shared_plan_changes_nothing() -> None:
    qkv, cos_sin = randn(3, 6 * 8), randn(10, 8, seed=1)
    positions, slots = torch.tensor([1, 2, 3]), torch.tensor([4, -1, 6])
    plan = plan_rope(cos_sin, positions, slots)
    results = []
    for given in (None, plan):
        k_cache, v_cache = caches(1, 8, torch.float32)
        q = rope_kv_write(qkv, cos_sin, positions, slots, k_cache, v_cache, 4, 1, plan=given)
        results.append((q, k_cache, v_cache))
    for plain, shared in zip(*results, strict=True):
        assert torch.equal(plain, shared)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rms_norm(randn(4), randn(4), 1e-5), "rms_norm: x"),
        (lambda: rms_norm(randn(2, 4), randn(5), 1e-5), "rms_norm: weight"),
        (lambda: add_rms_norm(randn(2, 4), randn(3, 4), randn(4), 1e-5), "residual"),
        (lambda: silu_mul(randn(2, 5)), "even width"),
        (
            lambda: rope_kv_write(
                randn(2, 40),
                randn(9, 8),
                torch.tensor([0, 1]),
                torch.tensor([0, 1]),
                *caches(1, 8, torch.float32),
                4,
                1,
            ),
            "width of qkv",
        ),
        (
            lambda: rope_kv_write(
                randn(2, 48),
                randn(9, 8),
                torch.tensor([0, 1]),
                torch.tensor([0, 1]),
                *caches(1, 8, torch.float16),
                4,
                1,
            ),
            "dtype",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
