// NVRTC knows by itself what kernels use of it.
#pragma once
