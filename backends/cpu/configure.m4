dnl CPU backend: --enable-cpu=auto|yes|no|builtin, --with-onednn=auto|yes|no.
AC_ARG_ENABLE([cpu],[AS_HELP_STRING([--enable-cpu=auto|yes|no|builtin],[CPU backend: a module, or built into libinfer])],[],[enable_cpu=auto])
AC_ARG_WITH([onednn],[AS_HELP_STRING([--with-onednn=auto|yes|no],[oneDNN for dense matrix work on the CPU])],[],[with_onednn=auto])
infer_cpu=yes
infer_cpu_builtin=no
AS_CASE([$enable_cpu],[no],[infer_cpu=no; infer_cpu_why="--disable-cpu"],[builtin],[infer_cpu_builtin=yes])
have_onednn=no
onednn_why="--without-onednn"
AS_IF([test "$with_onednn" != no],[
  onednn_why="oneapi/dnnl/dnnl.h or libdnnl not found"
  AC_CHECK_HEADER([oneapi/dnnl/dnnl.h],[
    AC_CHECK_LIB([dnnl],[dnnl_version],[have_onednn=yes; AC_SUBST([ONEDNN_LIBS],[-ldnnl])])])
  AS_IF([test "$with_onednn" = yes && test $have_onednn = no],[AC_MSG_ERROR([--with-onednn: $onednn_why])])
])
AS_IF([test $have_onednn = yes],[AC_DEFINE([HAVE_ONEDNN],[1],[oneDNN is present])])
AS_IF([test $infer_cpu = yes],[
  AS_IF([test $infer_cpu_builtin = yes],[infer_cpu_why="builtin"],[infer_cpu_why="module"])
  AS_IF([test $have_onednn = yes],[infer_cpu_why="$infer_cpu_why, with oneDNN"],[infer_cpu_why="$infer_cpu_why, without oneDNN ($onednn_why)"])
])
AS_IF([test $infer_cpu_builtin = yes],[AC_DEFINE([INFER_BUILTIN_CPU],[1],[The CPU backend is inside libinfer])])
AM_CONDITIONAL([HAVE_CPU],[test $infer_cpu = yes])
AM_CONDITIONAL([BACKEND_CPU],[test $infer_cpu = yes && test $infer_cpu_builtin = no])
AM_CONDITIONAL([BACKEND_CPU_BUILTIN],[test $infer_cpu_builtin = yes])
AM_CONDITIONAL([HAVE_ONEDNN],[test $have_onednn = yes])
case $host_cpu in x86_64) infer_x86=yes ;; *) infer_x86=no ;; esac
AM_CONDITIONAL([HOST_X86],[test $infer_x86 = yes])
