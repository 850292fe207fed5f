// A driver without a GPU: it loads any kernel, and remembers what the last one was launched with.

#include <cuda.h>
#include <string.h>

static struct {
  unsigned numbers[8]; // of programs and threads along three axes, shared memory, attributes
  unsigned attributes[4][4]; // of each, which one it is and the beginning of its value
  unsigned long long stream, function;
} launch;

static unsigned char arguments[1 << 14];
static size_t sizes[256], length;
static int count, launches;

// How many arguments the next kernels have, and how large each is.
void expect(int arguments_, const size_t *sizes_) {
  count = arguments_;
  memcpy(sizes, sizes_, arguments_ * sizeof(size_t));
}

int seen(void) { return launches; }

size_t copy_launch(unsigned char *into) {
  memcpy(into, &launch, sizeof launch);
  memcpy(into + sizeof launch, arguments, length);
  return sizeof launch + length;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **values, void **extra) {
  memset(&launch, 0, sizeof launch);
  const unsigned numbers[8] = {config->gridDimX,  config->gridDimY,  config->gridDimZ,       config->blockDimX,
                               config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->numAttrs};
  memcpy(launch.numbers, numbers, sizeof numbers);
  for (unsigned at = 0; at < config->numAttrs; ++at) {
    launch.attributes[at][0] = config->attrs[at].id;
    int cluster = config->attrs[at].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    memcpy(launch.attributes[at] + 1, &config->attrs[at].value, cluster ? 12 : 4);
  }
  launch.stream = (unsigned long long)config->hStream;
  launch.function = (unsigned long long)function;
  length = 0;
  for (int at = 0; at < count; length += sizes[at++])
    memcpy(arguments + length, values[at], sizes[at]);
  ++launches;
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes_, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  unsigned char *into = (unsigned char *)map;
  memset(into, 0, sizeof *map);
  memcpy(into, &address, 8);
  const unsigned numbers[3] = {type, rank, swizzle};
  memcpy(into + 8, numbers, sizeof numbers);
  memcpy(into + 20, box, 4 * rank);
  memcpy(into + 40, sizes_, 8 * rank);
  memcpy(into + 80, strides, 8 * (rank - 1));
  return CUDA_SUCCESS;
}

static int handles;

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  *module = (CUmodule)(size_t)++handles;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)(size_t)++handles;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 132 : 232448;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)1;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
  *clusters = 8;
  return CUDA_SUCCESS;
}

// What else Triton's module is linked with; nothing is left to do.
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char **text) { *text = "of no GPU"; return CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  *(CUdeviceptr *)value = address;
  return CUDA_SUCCESS;
}
