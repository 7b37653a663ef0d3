#!/bin/bash
# Installs, through apt, what catalogd is built, run and tested with, where it is
# missing; says what and why first. Does nothing when all is there. Uses sudo when
# not root, and asks no question under CI or without a terminal.
set -euo pipefail

# package · why. The PostgreSQL packages follow by version.
needs() {
  cat <<'LIST'
gcc                compiles catalogd-probe, which links GDAL
g++                compiles catalogd-probe, which links GDAL
libc6-dev          compiles catalogd-probe
pkg-config         finds GDAL
libgdal-dev        GDAL, which reads rasters
gdal-bin           the demo and the tests make rasters with it
python3-gdal       tests: rasters by the hand of another program
python3-rasterio   tests: rasters by the hand of another program
python3-pip        tests: installs the Python client
python3-setuptools tests: installs the Python client
python3-wheel      tests: installs the Python client
mypy               tests: the types of the Python client
curl               the README's and the docs' way to speak HTTP
strace             tests: what is synced to disk, and in which order
LIST
}

if ! command -v go >/dev/null; then
  echo "deps: Go is missing: see https://go.dev/dl/ (1.26 or later)" >&2
  exit 1
fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  # No apt: look for the things themselves, and leave the installing to people.
  missing=()
  command -v g++ >/dev/null || missing+=("C and C++ compilers")
  command -v pkg-config >/dev/null || missing+=("pkg-config")
  pkg-config --exists 'gdal >= 3.4' 2>/dev/null || missing+=("GDAL 3.4 or later, with headers")
  command -v gdal_translate >/dev/null || missing+=("GDAL's programs")
  command -v curl >/dev/null || missing+=("curl")
  command -v strace >/dev/null || missing+=("strace")
  python3 -c 'import osgeo.gdal, rasterio' 2>/dev/null || missing+=("Python 3 with GDAL and rasterio")
  python3 -c 'import mypy, pip, setuptools, wheel' 2>/dev/null || missing+=("mypy, pip, setuptools and wheel of that Python")
  compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || compgen -G '/usr/pgsql-*/bin/postgres' >/dev/null ||
    { command -v pg_config >/dev/null && [ -x "$(pg_config --bindir)/postgres" ]; } ||
    missing+=("PostgreSQL 14 or later with contrib and PostGIS 3 (the server)")
  [ ${#missing[@]} -eq 0 ] && exit 0
  {
    echo "deps: missing, and there is no apt here to get it with:"
    printf '  %s\n' "${missing[@]}"
    echo "Fedora:  dnf install gcc-c++ pkgconf gdal-devel gdal python3-gdal python3-rasterio python3-mypy python3-pip python3-setuptools python3-wheel curl strace postgresql-server postgresql-contrib postgis"
    echo "Arch:    pacman -S gcc pkgconf gdal python-gdal python-rasterio mypy python-pip python-setuptools python-wheel curl strace postgresql postgis"
  } >&2
  exit 1
fi

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# The PostgreSQL versions, newest first, of those names on standard input that
# match the pattern and are new enough.
versions() { sed -nE "s/^$1\$/\\1/p" | sort -rnu | awk '$1 >= 14'; }

# complete version: whether all of one PostgreSQL is installed.
complete() { installed "postgresql-$1" && installed "postgresql-$1-postgis-3" && installed "postgresql-$1-postgis-3-scripts"; }

here=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' 'postgresql-*' 2>/dev/null | sed -n 's/ installed$//p' | versions 'postgresql-([0-9]+)')
database=missing
for version in $here; do
  if complete "$version"; then database=installed; fi
done

packages=() reasons=()
while read -r package why; do
  installed "$package" && continue
  packages+=("$package")
  reasons+=("$(printf '%-32s %s' "$package" "$why")")
done < <(needs)
[ ${#packages[@]} -eq 0 ] && [ $database = installed ] && exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "deps: packages are missing (${packages[*]} and PostgreSQL with PostGIS if not there): run scripts/deps.sh as root once" >&2
    exit 1
  fi
  root=(sudo)
fi
root+=(env)
options=(--no-install-recommends)
if [ -n "${CI:-}" ] || ! [ -t 0 ]; then
  root+=(DEBIAN_FRONTEND=noninteractive)
  options+=(-y)
fi

echo "deps: something is missing; reading the lists of packages first" >&2
"${root[@]}" apt-get update -qq

if [ $database = missing ]; then
  # An installed server keeps its version; else the newest that has PostGIS.
  offered=$(apt-cache pkgnames postgresql- | versions 'postgresql-([0-9]+)-postgis-3')
  version=
  for candidate in $here $offered; do
    if grep -qx "$candidate" <<<"$offered"; then version=$candidate && break; fi
  done
  if [ -z "$version" ]; then
    echo "deps: apt offers no PostgreSQL 14 or later with PostGIS 3: add https://wiki.postgresql.org/wiki/Apt" >&2
    exit 1
  fi
  for package in "postgresql-$version" "postgresql-$version-postgis-3" "postgresql-$version-postgis-3-scripts"; do
    installed "$package" && continue
    packages+=("$package")
    reasons+=("$(printf '%-32s %s' "$package" "the catalogue's database")")
  done
fi

{
  echo "deps: to be installed with apt-get:"
  printf '  %s\n' "${reasons[@]}"
} >&2

# catalogd starts a server of its own. Debian's package would make and start
# another one, under the name main, unless told not to; only while we install.
quiet=/etc/postgresql-common/createcluster.d/catalogd.conf
if [ -z "$here" ]; then
  trap '"${root[@]}" rm -f "$quiet"' EXIT
  "${root[@]}" mkdir -p "${quiet%/*}"
  echo "create_main_cluster = false" | "${root[@]}" tee "$quiet" >/dev/null
fi
"${root[@]}" apt-get install "${options[@]}" "${packages[@]}"
