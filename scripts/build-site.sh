#!/bin/sh
# Builds the documentation as a site, with mdBook, into target/site, and checks that each link within it leads
# somewhere. The pages keep their places, so that their links are those of the repository.
set -eu
cd "$(dirname "$0")/.."
source=$PWD/target/site-source site=$PWD/target/site
rm -rf "$source" "$site"
mkdir -p "$source/src"
cp docs/book.toml "$source/"
cp -r README.md CHANGELOG.md CODE_OF_CONDUCT.md CONTRIBUTING.md LICENSE SECURITY.md docs "$source/src/"
# The files of the repository that pages link to, such as a dashboard.
grep -oh '](\.\./[^)#]*' docs/*.md | sed 's#](\.\./##; /\.md$/d' | sort -u | while read -r file; do
    [ -f "$file" ] || continue
    mkdir -p "$source/src/$(dirname "$file")"
    cp "$file" "$source/src/$file"
done
# The summary lies with the pages, and its links are relative to them. The codes of findings have a page each.
sed 's#](\.\./#](#; t
    s#](#](docs/#' docs/SUMMARY.md | while IFS= read -r line; do
    printf '%s\n' "$line"
    case $line in *"codes/README.md"*) ;; *) continue ;; esac
    for page in docs/codes/*.md; do
        code=$(basename "$page" .md)
        [ "$code" = README ] || echo "  - [$code]($page)"
    done
done >"$source/src/SUMMARY.md"
RUST_LOG=warn mdbook build --dest-dir "$site" "$source"

# Of a page that is missing in the summary, there is no HTML.
broken=$(find "$site" -name '*.html' | while read -r page; do
    grep -o 'href="[^"#:]*["#]' "$page" | sed 's/^href="//; s/["#]$//' | sort -u | while read -r target; do
        [ -e "$(dirname "$page")/$target" ] || echo "${page#"$site/"}: $target"
    done
done)
[ -z "$broken" ] || { printf 'links that lead nowhere:\n%s\n' "$broken" >&2; exit 1; }
echo "$site/index.html: $(find "$site" -name '*.html' | wc -l) pages"
