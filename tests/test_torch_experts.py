"""cutlass_py.torch.register_experts: models of transformers whose experts are grouped products, beside their own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.17")

import cutlass_py.torch as ct  # noqa: E402

NAME = ct.register_experts()
SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "num_experts_per_tok": 2, "max_position_embeddings": 64,
}  # fmt: skip


def config_of(kind, **changes):
    """Experts with a gate; with many; with a bias, and transposed weights whose gates stand between the values."""
    if kind == "mixtral":
        return transformers.MixtralConfig(**SMALL, num_local_experts=4, **changes)
    if kind == "qwen3":
        return transformers.Qwen3MoeConfig(**SMALL, num_experts=16, moe_intermediate_size=24, decoder_sparse_step=1)
    return transformers.GptOssConfig(**SMALL, num_local_experts=4)


def model_of(kind, dtype=torch.float64, **changes):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config_of(kind, **changes)).to(dtype)
    for parameter in model.parameters():  # biases are zeros at first
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def run(model, implementation, tokens):
    """Loss, logits and gradients."""
    model.set_experts_implementation(implementation)
    model.zero_grad()
    found = model(input_ids=tokens, labels=tokens)
    found.loss.backward()
    return found.logits.detach(), {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


@pytest.mark.parametrize("kind", ["mixtral", "qwen3", "gpt_oss"])
def test_models_compute_what_they_did(kind):
    model, tokens = model_of(kind), torch.randint(0, 64, (2, 9))
    wanted, gradients = run(model, "eager", tokens)
    logits, ours = run(model, NAME, tokens)
    torch.testing.assert_close(logits, wanted)
    assert ours.keys() == gradients.keys() and any("experts" in name for name in ours)
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture
def fused(monkeypatch):
    """What `gated` was in each of the grouped products."""
    seen = []

    def grouped_mm(*args, **keywords):
        seen.append(keywords["gated"])
        return ct.grouped_mm(*args, **keywords)

    monkeypatch.setattr("cutlass_py.torch.experts.grouped_mm", grouped_mm)
    return seen


FUNCTIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "tanh": None, "gelu_10": None,
}  # fmt: skip


@pytest.mark.parametrize("act", FUNCTIONS)
def test_gates_go_with_the_product_where_it_knows_their_function(act, fused):
    model, tokens = model_of("mixtral", hidden_act=act), torch.randint(0, 64, (2, 9))
    wanted, gradients = run(model, "eager", tokens)
    assert not fused
    logits, ours = run(model, NAME, tokens)
    assert fused == [FUNCTIONS[act], None] * 2
    torch.testing.assert_close(logits, wanted)
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, msg=lambda text, name=name: f"{name}: {text}")


def test_gates_between_values_or_with_hooks_are_left(fused):
    tokens = torch.randint(0, 64, (2, 9))
    run(model_of("gpt_oss"), NAME, tokens)
    model, calls = model_of("qwen3"), []
    for name, x in model.named_modules():
        if name.endswith("experts"):
            x.act_fn.register_forward_hook(lambda *_: calls.append(1))
    run(model, NAME, tokens)
    assert set(fused) == {None} and len(calls) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_and_under_autocast(dtype):
    model, tokens = model_of("mixtral", dtype), torch.randint(0, 64, (2, 9))
    with torch.no_grad():
        wanted, found = (model_with(model, name)(input_ids=tokens).logits.float() for name in ("grouped_mm", NAME))
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))
    with torch.autocast("cpu", dtype), torch.no_grad():
        assert model_of("mixtral", torch.float32)(input_ids=tokens).logits.isfinite().all()


def model_with(model, implementation):
    model.set_experts_implementation(implementation)
    return model


def test_experts_of_another_device_count_nothing():
    """Their numbers are too large, and rows that belong to nobody are zeros."""
    model = model_of("qwen3")
    experts = next(x for name, x in model.named_modules() if name.endswith("experts"))
    x = torch.randn(5, 32, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[0, 16], [16, 16], [3, 15], [2, 1], [16, 0]])
    weights = torch.rand(5, 2, dtype=torch.float64).masked_fill(index == 16, 0).requires_grad_()
    experts._is_expert_parallel = True
    experts.config._experts_implementation = NAME
    found = experts(x, index, weights)
    experts.config._experts_implementation = "eager"
    wanted = experts(x, index, weights)
    torch.testing.assert_close(found, wanted)
    ours, theirs = (torch.autograd.grad(y.sin().sum(), (x, weights)) for y in (found, wanted))
    torch.testing.assert_close(ours[0], theirs[0])
    assert not ours[1][index == 16].any() and not ours[0][1].any()


def test_compiled_as_one_graph():
    model = model_with(model_of("mixtral", torch.float32).eval(), NAME)
    experts = next(x for name, x in model.named_modules() if name.endswith("experts"))
    x, index = torch.randn(6, 32), torch.tensor([[0, 1], [2, 1], [3, 0], [1, 0], [2, 3], [0, 3]])
    weights = torch.rand(6, 2)
    with torch.no_grad():
        compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, index, weights), experts(x, index, weights))
