dnl CUDA backend: --enable-cuda=auto|yes|no. The host side needs nothing; the kernels need nvcc, which links nothing in.
AC_ARG_ENABLE([cuda],[AS_HELP_STRING([--enable-cuda=auto|yes|no],[CUDA backend module (kernels need nvcc)])],[],[enable_cuda=auto])
AC_ARG_WITH([cuda-arch],[AS_HELP_STRING([--with-cuda-arch=LIST],
  [what kernels are compiled for: sm_N machine code, compute_N for newer ones by the driver; none: no module, only the
   host side for its tests @<:@sm_90a,compute_75@:>@])],
  [],[with_cuda_arch=sm_90a,compute_75])
AC_ARG_VAR([NVCC],[CUDA compiler])
AC_ARG_VAR([NVCCFLAGS],[flags for NVCC])
infer_cuda=no
infer_cuda_why="--disable-cuda"
CUDA_ARCH_FLAGS=
AS_IF([test "x$enable_cuda" != xno && test "x$with_cuda_arch" = xnone],[infer_cuda_why="--with-cuda-arch=none"],
  [test "x$enable_cuda" != xno],[
  infer_path=$PATH$PATH_SEPARATOR/usr/local/cuda/bin
  AS_IF([test -n "$CUDA_HOME"],[infer_path=$PATH$PATH_SEPARATOR$CUDA_HOME/bin$PATH_SEPARATOR/usr/local/cuda/bin])
  AC_PATH_PROG([NVCC],[nvcc],[],[$infer_path])
  for infer_arch in `AS_ECHO(["$with_cuda_arch"]) | tr , ' '`; do
    AS_CASE([$infer_arch],
      [sm_*],[
        infer_ptx=`AS_ECHO(["$infer_arch"]) | sed s/^sm/compute/`
        CUDA_ARCH_FLAGS="$CUDA_ARCH_FLAGS -gencode arch=$infer_ptx,code=$infer_arch"],
      [compute_*],[CUDA_ARCH_FLAGS="$CUDA_ARCH_FLAGS -gencode arch=$infer_arch,code=$infer_arch"],
      [AC_MSG_ERROR([--with-cuda-arch: $infer_arch is neither sm_N nor compute_N])])
  done
  AS_IF([test -z "$NVCC"],[infer_cuda_why="nvcc is not in PATH, CUDA_HOME or /usr/local/cuda"],[
    AC_MSG_CHECKING([whether $NVCC compiles for $with_cuda_arch])
    AS_ECHO(["extern \"C\" __global__ void k(int *p) { *p = 1; }"]) >conftest.cu
    AS_IF([$NVCC $NVCCFLAGS -fatbin $CUDA_ARCH_FLAGS -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
      [AC_MSG_RESULT([yes]); infer_cuda=yes; infer_cuda_why="module, kernels for $with_cuda_arch"],
      [AC_MSG_RESULT([no]); infer_cuda_why="$NVCC does not compile for $with_cuda_arch (config.log)"])
    rm -f conftest.cu conftest.fatbin])
  AS_IF([test "x$enable_cuda$infer_cuda" = xyesno],[AC_MSG_ERROR([--enable-cuda: $infer_cuda_why])])
])
AC_SUBST([CUDA_ARCH_FLAGS])
dnl The toolkit's own header is only compared with ours.
CUDA_CPPFLAGS=
infer_cuda_h=no
AS_IF([test $infer_cuda = yes],[
  infer_dir=`AS_DIRNAME(["$NVCC"])`
  AS_IF([test -f "$infer_dir/../include/cuda.h"],[infer_cuda_h=yes; CUDA_CPPFLAGS="-isystem $infer_dir/../include"])
])
AC_SUBST([CUDA_CPPFLAGS])
AM_CONDITIONAL([HAVE_CUDA_H],[test $infer_cuda_h = yes])
AM_CONDITIONAL([BACKEND_CUDA],[test $infer_cuda = yes])
dnl Without nvcc the host side is still built; its tests run the kernels in emulation (tests/simt).
AM_CONDITIONAL([CUDA_HOST],[test "x$enable_cuda" != xno])
AM_CONDITIONAL([FAKECUDA],[test "x$enable_cuda" != xno && test $infer_simt = yes])
