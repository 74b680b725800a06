dnl Emulated kernels (tests/simt) are C++17: left out, with the reason, where there is no compiler that makes programs for
dnl the host that $CC makes them for. The thread sanitizer cannot follow fibers: it gets none of the emulation's code, and
dnl the emulation's own tests are left out; the fake CUDA driver over it is not.
infer_simt=no
infer_simt_tests=no
INFER_CXXFLAGS="-std=c++17 -Wall -Wextra -ffp-contract=off -fno-strict-aliasing"
AS_CASE([$enable_sanitizer],[no|*thread*],[],[
  INFER_CXXFLAGS="$INFER_CXXFLAGS -fsanitize=$enable_sanitizer -fno-omit-frame-pointer -fno-sanitize-recover=undefined"])
infer_save_CXXFLAGS=$CXXFLAGS
CXXFLAGS="$CXXFLAGS $INFER_CXXFLAGS"
AS_IF([test "`$CXX -dumpmachine 2>/dev/null`" != "`$CC -dumpmachine 2>/dev/null`"],
  [infer_simt_why="no C++ compiler for this host"],[
  AC_LANG_PUSH([C++])
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <tuple>
#include <cstdint>]],[[std::tuple<int, int> t{1, 2}; return std::apply([](int a, int b) { return a - b; }, t);]])],
    [infer_simt=yes; infer_simt_tests=yes; infer_simt_why="$CXX"],[infer_simt_why="$CXX does not build C++17"])
  AC_LANG_POP([C++])])
AS_CASE([$infer_simt$enable_sanitizer],[yes*thread*],
  [infer_simt_tests=no; infer_simt_why="$CXX; not its own tests, with the thread sanitizer"])
CXXFLAGS=$infer_save_CXXFLAGS
AS_IF([test "x$enable_werror" = xyes],[INFER_CXXFLAGS="$INFER_CXXFLAGS -Werror"])
AC_SUBST([INFER_CXXFLAGS])
AM_CONDITIONAL([EMULATION],[test $infer_simt = yes])
AM_CONDITIONAL([SIMT],[test $infer_simt_tests = yes])
