#include "arrays/torch_private.h"

#include <dlfcn.h>

namespace cutlass_py {

// c10's `raw_local_dispatch_key_set` (c10/core/impl/LocalDispatchKeySet.h), by its mangled name. On an H200's host,
// `mm(out=)` takes 1.04 times as long as `gemm(out=)` with it and 1.11 times without; the bar is 1.10.
const Dispatch* dispatch_now() {
  static void* c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  thread_local auto now =  // a thread has its own, hence the second look-up
      static_cast<const Dispatch*>(c10 ? dlsym(c10, "_ZN3c104impl26raw_local_dispatch_key_setE") : nullptr);
  return now;
}

}  // namespace cutlass_py
