dnl Backends whose folders hold only a README so far: --enable-NAME=auto leaves them out and says why;
dnl =yes is an error, so that nobody believes that they were built.
INFER_BACKENDS_LISTED="cuda hip vulkan opencl openvino"
AC_DEFUN([INFER_BACKEND_TO_COME],[
  AC_ARG_ENABLE([$1],[AS_HELP_STRING([--enable-$1=auto|yes|no],[$1 backend module (not written yet)])],[],[enable_$1=auto])
  infer_$1=no
  infer_$1_why="not written yet"
  AS_CASE([$enable_$1],[no],[infer_$1_why="--disable-$1"],
    [yes|builtin],[AC_MSG_ERROR([--enable-$1: this backend is not written yet])])
])
INFER_BACKEND_TO_COME([hip])
INFER_BACKEND_TO_COME([vulkan])
INFER_BACKEND_TO_COME([openvino])
