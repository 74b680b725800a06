#!/bin/sh
# Makes ./configure from configure.ac; needed only in a git checkout.
set -e
cd "$(dirname "$0")"
autoreconf --install --force --warnings=all,no-obsolete,no-portability
