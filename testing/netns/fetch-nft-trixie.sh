#!/bin/sh
# Fetches Debian trixie's nft (1.1.3) with the libraries that it needs, and unpacks it into a
# directory, without installing anything. Where the installed nft is as new, that serves.
#
#   fetch-nft-trixie.sh DIR     makes DIR/nft, a program that runs with its own libc
#
# A DIR that is complete is left alone, so it serves as a cache. The packages come from the mirror
# that this machine's own come from, or else from Debian's; MIRROR overrides it.
set -eu

dir=${1:?usage: fetch-nft-trixie.sh DIR}
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
    grep '/debian/*$' | head -n 1)}
mirror=${mirror:-http://deb.debian.org/debian}
packages='nftables libnftables1 libnftnl11 libmnl0 libxtables12 libjansson4 libgmp10 libedit2
libbsd0 libmd0 libtinfo6 libc6'

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
# Tests run side by side: one of them fetches, the others wait.
exec 9>"$dir/lock"
flock 9
[ -x "$dir/nft" ] && "$dir/nft" --version >/dev/null 2>&1 && exit 0

installed=$(nft --version 2>/dev/null | sed -n 's/^nftables v\([0-9.]*\).*/\1/p')
if [ -n "$installed" ] && [ "$(printf '%s\n' 1.1.3 "$installed" | sort --version-sort | head -n 1)" = 1.1.3 ]; then
    ln -sf "$(command -v nft)" "$dir/nft"
    exit 0
fi

mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial" "$dir/debs" "$dir/root"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ ! -e "$keyring" ]; then
    # Ubuntu has the keys in a package.
    (cd "$dir" && apt-get -q -o APT::Sandbox::User=root download debian-archive-keyring) >&2 ||
        { echo "the package debian-archive-keyring is missing, with the keys of Debian's packages" >&2; exit 1; }
    dpkg-deb -x "$dir"/debian-archive-keyring_*.deb "$dir/keys"
    keyring=$dir/keys$keyring
fi
printf 'deb [signed-by=%s] %s trixie main\n' "$keyring" "$mirror" >"$dir/apt/sources.list"
: >"$dir/apt/status"

# An apt with lists, caches and a package database of its own.
apt() {
    apt-get -q -o Dir::Etc::sourcelist="$dir/apt/sources.list" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$dir/apt/lists" -o Dir::Cache="$dir/apt/cache" \
        -o Dir::State::status="$dir/apt/status" -o APT::Sandbox::User=root \
        -o Acquire::Languages=none -o Acquire::Retries=2 -o Acquire::http::Timeout=20 "$@"
}
apt -o APT::Update::Error-Mode=any update
# shellcheck disable=SC2086
(cd "$dir/debs" && apt download $packages)
for deb in "$dir"/debs/*.deb; do
    dpkg-deb -x "$deb" "$dir/root"
done

libs=$(dirname "$(find "$dir/root" -name 'libnftables.so.1' | head -n 1)")
loader=$(find "$dir/root" -name 'ld-linux*.so.*' | head -n 1)
libc=$(dirname "$(find "$dir/root" -name 'libc.so.6' | head -n 1)")
nft=$(find "$dir/root" -path '*/sbin/nft' | head -n 1)
cat >"$dir/nft.new" <<END
#!/bin/sh
exec '$loader' --inhibit-cache --library-path '$libs:$libc' '$nft' "\$@"
END
chmod +x "$dir/nft.new"
"$dir/nft.new" --version
mv "$dir/nft.new" "$dir/nft"
rm -rf "$dir/apt" "$dir/debs"
