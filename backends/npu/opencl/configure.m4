dnl OpenCL backend: --enable-opencl=auto|yes|no. Needs the headers only; the loader is opened at run time.
AC_ARG_ENABLE([opencl],[AS_HELP_STRING([--enable-opencl=auto|yes|no],[OpenCL backend module])],[],[enable_opencl=auto])
infer_opencl=no
infer_opencl_why="--disable-opencl"
AS_IF([test "x$enable_opencl" != xno],[
  AC_CHECK_HEADER([CL/cl.h],[infer_opencl=yes; infer_opencl_why="module, kernels built at run time"],
    [infer_opencl_why="CL/cl.h is missing (Debian: opencl-c-headers)"],[#define CL_TARGET_OPENCL_VERSION 120])
  AS_IF([test "x$enable_opencl$infer_opencl" = xyesno],[AC_MSG_ERROR([--enable-opencl: $infer_opencl_why])])
])
AM_CONDITIONAL([BACKEND_OPENCL],[test $infer_opencl = yes])
