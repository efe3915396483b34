#include "runtime/launch_cache.h"

namespace cutlass_py {

LaunchCache& launch_cache() {
  static auto* made = new LaunchCache();
  return *made;
}

SharedLaunchCache& shared_launch_cache() {
  static auto* made = new SharedLaunchCache();
  return *made;
}

}  // namespace cutlass_py
