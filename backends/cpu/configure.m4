dnl CPU backend: --enable-cpu=auto|yes|no|builtin.
AC_ARG_ENABLE([cpu],[AS_HELP_STRING([--enable-cpu=auto|yes|no|builtin],[CPU backend: a module, or built into libinfer])],[],[enable_cpu=auto])
infer_cpu=yes
infer_cpu_builtin=no
AS_CASE([$enable_cpu],[no],[infer_cpu=no; infer_cpu_why="--disable-cpu"],[builtin],[infer_cpu_builtin=yes])
case $host_cpu in x86_64) infer_x86=yes ;; *) infer_x86=no ;; esac
case $host_cpu in aarch64) infer_arm64=yes ;; *) infer_arm64=no ;; esac
AS_IF([test $infer_cpu = yes],[
  AS_IF([test $infer_cpu_builtin = yes],[infer_cpu_why="builtin"],[infer_cpu_why="module"])
  AS_IF([test $infer_x86 = yes],[infer_cpu_why="$infer_cpu_why, kernels generic, avx2, avxvnni, avx512 and amx"],[infer_cpu_why="$infer_cpu_why, kernels generic"])
  AS_IF([test $infer_arm64 = yes],[infer_cpu_why="$infer_cpu_why, neon, i8mm, sve and svei8mm"])
])
AS_IF([test $infer_cpu_builtin = yes],[AC_DEFINE([INFER_BUILTIN_CPU],[1],[The CPU backend is inside libinfer])])
AM_CONDITIONAL([HAVE_CPU],[test $infer_cpu = yes])
AM_CONDITIONAL([BACKEND_CPU],[test $infer_cpu = yes && test $infer_cpu_builtin = no])
AM_CONDITIONAL([BACKEND_CPU_BUILTIN],[test $infer_cpu_builtin = yes])
AM_CONDITIONAL([HOST_X86],[test $infer_x86 = yes])
AM_CONDITIONAL([HOST_ARM64],[test $infer_arm64 = yes])
