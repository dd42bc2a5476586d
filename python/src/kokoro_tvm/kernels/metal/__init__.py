"""The operators as kernels for Apple GPUs: one module per CPU module of the same name, with the same functions.

What it is: TIR with thread bindings, lowered by TVM to the Metal shading language. What it is not: another meaning; every module
here is held to the ``reference`` of the CPU module it mirrors, lengths and all.

What a GPU changes:

- The grid covers the capacity, which is all that the host knows. A thread group beyond the valid length returns at once.
- There is no float64. Where the CPU needs its digits, integers take its place: they are exact, and the fast-math mode in which
  TVM's runtime compiles shaders cannot reorder them. Error-free float32 pairs would be optimised away.
- Nothing depends on the order in which threads run: every sum has a fixed shape, so results are the same from run to run.
- All indices are int32; a tensor has fewer than 2^31 elements.
"""
