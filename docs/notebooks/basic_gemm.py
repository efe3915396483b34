# %% [markdown]
# # Basic GEMM

# %%
import cutlass_py

print(len(cutlass_py.get_kernels(compiled=False)))
