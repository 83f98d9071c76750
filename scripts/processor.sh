# Sourced by claims.py's commands and by night.sh: one thread, and kernels that every processor with AVX2 has.
# OpenBLAS and numpy otherwise choose theirs by the processor, and the last bits of sums with it.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"
