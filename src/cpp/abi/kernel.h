/* The C ABI between cutlass_py and every compiled kernel, built ahead of time or on demand.
 *
 * Plain C: a kernel library knows nothing of Python, DLPack or any framework. A library exports one function,
 * cutlass_py_library(), and everything else is reached through the tables it returns. Bump CUTLASS_PY_ABI with any
 * change to a struct here, or to what kernels do before they wait where launches overlap; but not for a member at the
 * end of CutlassPyLaunch, CutlassPyKernel or CutlassPyLibrary that libraries of before neither have nor read. */
#ifndef CUTLASS_PY_KERNEL_H
#define CUTLASS_PY_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define CUTLASS_PY_ABI 9

#ifdef __cplusplus
extern "C" {
#endif

/* A strided array (batch, rows, cols), strides in elements, any sign; a stride of 0 repeats. Absent where data is null.
 */
typedef struct CutlassPyArray {
  void* data;
  int32_t dtype; /* index into DTYPES (dtypes.py) */
  int64_t row, col, batch;
} CutlassPyArray;

/* A factor: `value`, or what lies at `device` when the kernel runs, in the dtype of scalars of the accumulator: f32,
 * f64, c64 or c128 where that is the accumulator's, f32 for s32 and f16. */
typedef struct CutlassPyScalar {
  double value, imaginary;
  const void* device;
} CutlassPyScalar;

/* What was given for one parameter or output of an epilogue that the user wrote: a number, or an array. Arrays of one
 * element and vectors have a stride of 0 along the axes that repeat them, or that a reduction goes over.
 *
 * Reductions that a kernel does not finish it leaves in the array of that output, for CutlassPyElementwise's `reduce`:
 * 2.x kernels the values themselves, a matrix like D (in that of the first output that reduces them); 3.x kernels one
 * over both axes as one value per row. Those are f32, or f64 beside f64 sums. */
typedef struct CutlassPyOperand {
  CutlassPyArray array;
  double value; /* where the array is absent */
} CutlassPyOperand;

/* What happens to the product before it is stored:
 *
 *   z = alpha * scale_a * scale_b * acc + beta * c + bias         aux = z, where the activation is no derivative
 *   d = scale_out * y,  y = activation(z);   activation(gate) * z with a gate;   z * f'(aux) for the derivative of f
 *   bias_grad = y summed over the axis that its stride repeats
 *
 * Vectors are arrays with a stride of 0 along the other axis. `c` is not read where beta is 0.
 *
 * Kernels for scales in blocks apply them within the product: scale_a is (m, k / 128), a factor for every row and every
 * 128 of k; scale_b is (k / 128, n / 128) or (k / 128, n). Parts of 128 count as whole ones.
 *
 * Where `user` is not null, the kernel was compiled for a traced function (epilogue_cpp.py), which takes acc and these
 * operands in its own order; all else is absent. */
typedef struct CutlassPyEpilogue {
  CutlassPyScalar alpha, beta, scale_out;
  CutlassPyArray c, bias, scale_a, scale_b, gate, aux, bias_grad;
  int32_t activation;   /* index into ACTIVATIONS (epilogues.py) */
  double parameters[2]; /* of the activation; a kernel rounds them to the dtype of its arithmetic */
  const CutlassPyOperand* user;
} CutlassPyEpilogue;

/* Where and how a kernel is launched, whatever it computes. */
typedef struct CutlassPyLaunch {
  int32_t device;   /* CUDA ordinal; it is the current device during the call */
  int32_t sm_count; /* multiprocessors of that device */
  int32_t raster;   /* 0 heuristic, 1 along m, 2 along n (3.x only) */
  int32_t swizzle;  /* largest swizzle of the tile order: 1, 2, 4 or 8 */
  int32_t overlap;  /* nonzero: launch with programmatic dependent launch where the kernel supports it. It reads a, b
                     * and scales after its predecessor has ended; other factors in device memory, and a C that comes
                     * without TMA, maybe before that. */
  void* workspace;  /* workspace_size() bytes, 256-byte aligned */
  void* stream;     /* cudaStream_t */
  const struct CutlassPyKernel* kernel; /* the one that is launched: those that share a function refuse to without */
} CutlassPyLaunch;

/* What a kernel computes, and so what its `arguments` and its `facts` are. */
typedef enum CutlassPyOperation {
  CUTLASS_PY_GEMM = 0,        /* CutlassPyGemm, CutlassPyGemmFacts */
  CUTLASS_PY_QUANTIZE = 1,    /* CutlassPyQuantize, CutlassPyQuantizeFacts */
  CUTLASS_PY_GROUPED_GEMM = 2 /* as CUTLASS_PY_GEMM */
} CutlassPyOperation;

/* Groups of rows of A, of columns of B or of k: group i has the i-th matrix of what is batched, and lines begin to end
 * of what is not. The numbers lie in device memory and are read when the kernel runs; what does not fit is cut off. */
typedef enum CutlassPyGroupsKind {
  CUTLASS_PY_NO_GROUPS = 0,
  CUTLASS_PY_GROUP_ENDS = 1,   /* `batch` ends; the first group begins at 0, each other one where the last one ends */
  CUTLASS_PY_GROUP_STARTS = 2, /* batch + 1 starts, the last one an end */
  CUTLASS_PY_GROUP_SIZES = 3,  /* `batch` sizes, one group behind the other */
  CUTLASS_PY_GROUP_FIRST = 4   /* so many lines, the first ones, of each matrix of a batch */
} CutlassPyGroupsKind;

typedef struct CutlassPyGroups {
  const void* numbers;
  int32_t kind;
  int32_t wide; /* int64, instead of int32 */
  char axis;    /* 'm', 'n' or 'k' */
} CutlassPyGroups;

/* Columns that come in pairs, a gate and a value: elements from the one to the other, of B, D, aux, a bias and a
 * scale_b; 0 where there are none. Of B: D = f(gates) * values, each with its own bias and scale, where D has n columns
 * and B twice as many; aux = both. Of D: the gradients of gates and values from the product, for the activation's
 * number, which is a derivative's, and aux. */
typedef struct CutlassPyPairs {
  int64_t b, d, aux, bias, scale_b;
} CutlassPyPairs;
/* Of one product of many that differ: its extents, and how far the lines of its matrices lie apart. */
typedef struct CutlassPyExtents {
  int64_t m, n, k, lda, ldb, ldc, ldd;
} CutlassPyExtents;

/* D = epilogue(A @ B) for `batch` problems. A is (m, k), B is (k, n), D is (m, n), row-major. Leading dimensions and
 * batch strides are in elements. With `pointers`, a, b, d and the epilogue's c are arrays of `batch` device addresses
 * in device memory, and batch strides have no meaning. */
typedef struct CutlassPyGemm {
  int32_t m, n, k, batch;
  const void *a, *b;
  void* d;
  int64_t lda, ldb, ldd;
  int64_t batch_a, batch_b, batch_d;
  CutlassPyEpilogue epilogue;
  int32_t pointers;
  CutlassPyGroups groups; /* of their axis, the extent is that of all groups together */
  CutlassPyPairs pairs;
  const CutlassPyExtents*
      extents; /* with `pointers`, of each product, in device memory: m, n and k are then the mean */
} CutlassPyGemm;

/* What the C++ type of a GEMM says of itself; dtypes and layouts by the names of dtypes.py. */
typedef struct CutlassPyGemmFacts {
  const char *a, *b, *acc, *c, *d; /* c is "void" where the kernel cannot read one */
  char layout[3];                  /* A then B, each 't' (row-major) or 'n' (column-major) */
  int32_t api;                     /* 2 or 3: the CUTLASS generation; 0 of neither's kind */
  int32_t tile[3], cluster[3];
  int32_t threads, smem_bytes, stages;
  int32_t align_a, align_b, align_c, align_d; /* in elements */
  int32_t pointers;                           /* whether it takes arrays of addresses */
} CutlassPyGemmFacts;

/* q = x / scale in the dtype of q, and that scale of each group of elements:
 *
 *   scale = max(amax * (1 / limit), 2^-126), or 1 where amax is 0    amax: of the group's finite elements
 *
 * limit is the largest finite value of q, 127 for s8, at which results saturate; NaN stays NaN in fp8 and becomes 0 in
 * s8. All arithmetic is f32, to nearest even. The last two dimensions are rows and columns; groups are `rows` by `cols`
 * of them (CutlassPyQuantizeFacts), and the last of an extent may be smaller. Strides are in elements, any sign; those
 * of scales along rows and columns go from one group to the next. Elements of q, and of scales, lie apart. */
typedef struct CutlassPyQuantize {
  const void* x;
  void* q;
  float* scales;
  int32_t rank;      /* 2 to 8 */
  int64_t extent[8]; /* of x; the first `rank` of each, as of strides */
  int64_t x_stride[8], q_stride[8], scale_stride[8];
} CutlassPyQuantize;

typedef struct CutlassPyQuantizeFacts {
  const char *x, *q;  /* dtypes */
  int32_t rows, cols; /* of a group; 0: all of that axis, and where both are 0, of the whole array */
  int32_t threads;    /* at most */
} CutlassPyQuantizeFacts;

/* Status codes of `run`: 0, a positive cudaError_t, or minus a cutlass::Status. */
typedef struct CutlassPyKernel {
  const char* name;
  const void* facts;                                                       /* as its operation has them, never null */
  size_t (*workspace_size)(const void* arguments, const CutlassPyLaunch*); /* no workspace or stream yet */
  int (*run)(const void* arguments, const CutlassPyLaunch*);
  int (*registers)(void); /* per thread, on the current device, whose driver loads the kernel; 0 without an answer */
  int32_t operation;      /* CutlassPyOperation */
  const void* context;    /* the kernel's own */
} CutlassPyKernel;

typedef struct CutlassPyElementwise {
  /* dst = src, element sizes equal; both (batch, rows, cols). Reads and writes whole lines on either side. */
  int (*copy)(const CutlassPyArray* src, const CutlassPyArray* dst, int32_t itemsize, int64_t batch, int64_t rows,
              int64_t cols, void* stream);
  /* d = epilogue(acc), converted to D's dtype. acc is the sum over `parts` arrays `part_stride` elements apart, added
   * in their order; its data is null for a product of 0, its dtype tells that of scalars. `workspace` is
   * compose_workspace() bytes. Where D's data is null, only bias_grad is written. */
  int (*compose)(const CutlassPyArray* acc, int32_t parts, int64_t part_stride, const CutlassPyEpilogue* epilogue,
                 const CutlassPyArray* d, int64_t batch, int64_t rows, int64_t cols, void* workspace, void* stream);
  size_t (*compose_workspace)(const CutlassPyEpilogue* epilogue, int64_t batch, int64_t rows, int64_t cols);
  /* to (batch, lines) = the sum (0), largest (1) or smallest (2) of each line of `from` (batch, lines, length), in a
   * fixed order; NaN goes through. Both f32 or both f64. `workspace` is reduce_workspace() bytes, which follow from
   * strides and extents. */
  int (*reduce)(const CutlassPyArray* from, const CutlassPyArray* to, int32_t reduction, int64_t batch, int64_t lines,
                int64_t length, void* workspace, void* stream);
  size_t (*reduce_workspace)(const CutlassPyArray* from, int64_t batch, int64_t lines, int64_t length);
  /* Writes `count` addresses to device memory, by value through the launch: the host's list may go, graphs keep them.
   */
  int (*write_pointers)(const void* const* pointers, int64_t count, void* destination, void* stream);
  /* Row i of dst (rows, cols) = row numbers[i] of src (src_rows, cols), element sizes equal; zeros where there is no
   * such row. Numbers lie in device memory: int32, or int64 where `wide`. dst runs along its columns. */
  int (*gather)(const CutlassPyArray* src, int64_t src_rows, const void* numbers, int32_t wide,
                const CutlassPyArray* dst, int32_t itemsize, int64_t rows, int64_t cols, void* stream);
  /* Zeros in the rows or columns of d (rows, cols) that belong to none of `count` groups: those in front of the first
   * and behind the last. Groups of k, and the first lines of matrices, have none. */
  int (*clear_rest)(const CutlassPyArray* d, int64_t rows, int64_t cols, const CutlassPyGroups* groups, int32_t count,
                    void* stream);
} CutlassPyElementwise;

typedef struct CutlassPyLibrary {
  int32_t abi;
  int32_t count;
  const CutlassPyKernel* const* kernels;
  const CutlassPyElementwise* elementwise; /* null in a library of kernels only */
  const char* (*error_string)(int status); /* "cudaErrorInvalidValue: invalid argument" */
  /* The kernel of a cubin that brings its own descriptor (kernels/sm90/cubin.cuh), for as long as the process lives;
   * null for any other. The package's own library alone has it. */
  const CutlassPyKernel* (*load_cubin)(const void* cubin, size_t size);
  /* How many clusters of `size` blocks, each with a multiprocessor of its own, the current device runs at once: cc 9.0
   * and newer. Null, or a status, without an answer. The package's own library alone has it. */
  int (*clusters_at_once)(int32_t size, int32_t device, int32_t* clusters);
} CutlassPyLibrary;

const CutlassPyLibrary* cutlass_py_library(void); /* what a kernel library exports */
typedef const CutlassPyLibrary* (*CutlassPyLibraryEntry)(void);

#ifdef __cplusplus
}
#endif
#endif
