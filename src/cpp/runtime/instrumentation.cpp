#include "runtime/instrumentation.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#define CUTLASS_PY_NVTX 1
#include <nvtx3/nvToolsExt.h>
#endif

namespace cutlass_py::instrumentation {

std::atomic<unsigned> wanted{0};

#ifdef CUTLASS_PY_NVTX

bool has_ranges() { return true; }

static nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("cutlass_py");
  return made;
}

void Range::push(const std::string& name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION, attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII, attributes.message.ascii = name.c_str();
  nvtxDomainRangePushEx(domain(), &attributes);
}

void Range::pop() { nvtxDomainRangePop(domain()); }

#else

bool has_ranges() { return false; }

void Range::push(const std::string&) {}
void Range::pop() {}

#endif

}  // namespace cutlass_py::instrumentation
