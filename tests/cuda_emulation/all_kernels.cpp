// The kernels for NVIDIA GPUs, compiled for the CPU.
#include "kernels/cuda/argmax.cu"
#include "kernels/cuda/attention.cu"
#include "kernels/cuda/cuda_device.cu"
#include "kernels/cuda/embedding.cu"
#include "kernels/cuda/gather_rows.cu"
#include "kernels/cuda/layer_norm.cu"
#include "kernels/cuda/linear.cu"
#include "kernels/cuda/load.cu"
