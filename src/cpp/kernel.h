/* The C ABI between cutlass_py and every compiled kernel, built ahead of time or on demand.
 *
 * Plain C: a kernel library knows nothing of Python, DLPack or any framework. A library exports one function,
 * cutlass_py_library(), and everything else is reached through the tables it returns. Bump CUTLASS_PY_ABI with any
 * change to a struct here. */
#ifndef CUTLASS_PY_KERNEL_H
#define CUTLASS_PY_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define CUTLASS_PY_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

/* D = alpha * (A @ B) + beta * C for `batch` problems. A is (m, k), B is (k, n); C and D are (m, n), row-major.
 * Leading dimensions and batch strides are in elements. `c` is not read when beta is 0. */
typedef struct CutlassPyGemm {
  int32_t m, n, k, batch;
  const void *a, *b, *c;
  void* d;
  int64_t lda, ldb, ldc, ldd;
  int64_t batch_a, batch_b, batch_c, batch_d;
  double alpha, beta;
  int32_t device;   /* CUDA ordinal; it is the current device during the call */
  int32_t sm_count; /* multiprocessors of that device */
  int32_t raster;   /* 0 heuristic, 1 along m, 2 along n (3.x only) */
  int32_t swizzle;  /* largest swizzle of the tile order: 1, 2, 4 or 8 */
  int32_t overlap;  /* nonzero: launch with programmatic dependent launch where the kernel supports it */
  void* workspace;  /* workspace_size() bytes, 256-byte aligned */
  void* stream;     /* cudaStream_t */
} CutlassPyGemm;

/* What the C++ type says of itself; dtypes and layouts by the names of families.py. */
typedef struct CutlassPyFacts {
  const char *a, *b, *acc, *c, *d; /* c is "void" where the kernel cannot read one */
  char layout[3];                  /* A then B, each 't' (row-major) or 'n' (column-major) */
  int32_t api;                     /* 2 or 3: the CUTLASS generation */
  int32_t tile[3], cluster[3];
  int32_t threads, smem_bytes, stages;
  int32_t align_a, align_b, align_c, align_d; /* in elements */
} CutlassPyFacts;

/* Status codes of `run`: 0, a positive cudaError_t, or minus a cutlass::Status. */
typedef struct CutlassPyKernel {
  const char* name;
  CutlassPyFacts facts;
  size_t (*workspace_size)(const CutlassPyGemm*);
  int (*run)(const CutlassPyGemm*);
} CutlassPyKernel;

/* A strided array as the elementwise kernels see it: strides in elements, any sign. */
typedef struct CutlassPyArray {
  void* data;
  int32_t dtype; /* index into families.DTYPES */
  int64_t row, col, batch;
} CutlassPyArray;

typedef struct CutlassPyElementwise {
  /* dst = src, element sizes equal; both (batch, rows, cols). Reads and writes whole lines on either side. */
  int (*copy)(const CutlassPyArray* src, const CutlassPyArray* dst, int32_t itemsize, int64_t batch, int64_t rows,
              int64_t cols, void* stream);
  /* d = alpha * acc + beta * c, converted to D's dtype; acc and c may be null. */
  int (*compose)(const CutlassPyArray* acc, const CutlassPyArray* c, const CutlassPyArray* d, double alpha, double beta,
                 int64_t batch, int64_t rows, int64_t cols, void* stream);
} CutlassPyElementwise;

typedef struct CutlassPyLibrary {
  int32_t abi;
  int32_t count;
  const CutlassPyKernel* const* kernels;
  const CutlassPyElementwise* elementwise; /* null in a library of kernels only */
  const char* (*error_string)(int status); /* "cudaErrorInvalidValue: invalid argument" */
} CutlassPyLibrary;

typedef const CutlassPyLibrary* (*CutlassPyLibraryEntry)(void); /* the type of cutlass_py_library */

#ifdef __cplusplus
}
#endif
#endif
