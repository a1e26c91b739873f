#!/usr/bin/env bash
#
# Writes compile_commands.json, by which clangd and other editors' tools know how
# each file is compiled.  Made from what make would run for everything, so that
# there is no second list of flags; nothing is compiled.
#
#   scripts/compile-commands.sh MAKE TARGET...
#
# An nvcc command is rewritten for clang, which knows none of nvcc's options; a
# compiler cache in front of a compiler is left out.  The module is in it when
# its Makefile is there (make module).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

make=$1
shift
# We are run by make, whose flags and job server are not for these.
unset MAKEFLAGS MFLAGS MAKELEVEL
module=$BUILD/module/Makefile
nginx=${NGINX_DEV:-/usr/share/nginx/src}

# Compiler commands, one a line: the directory, then the command.
commands() {
    "$make" -Bn --no-print-directory V=1 B="${B:-build}" "$@" \
        | sed -e ':more' -e '/\\$/{N;s/\\\n/ /;b more' -e '}' \
        | grep -E '^[^ ]*(cc|ccache|clang)(-[0-9]+)? .*\.(c|cu)( |$)' \
        | sed "s|^|$ROOT |"
    if [ -f "$module" ]; then
        "$make" -Bn --no-print-directory -C "$nginx" -f "$module" modules \
            | sed -e ':more' -e '/\\$/{N;s/\\\n/ /;b more' -e '}' \
            | grep ' -c ' | sed "s|^|$nginx |"
    fi
}

commands "$@" | awk '
    function quote(s) { gsub(/[\\"]/, "\\\\&", s); return "\"" s "\"" }
    function add(s) { gsub(/\047/, "", s); args = args ", " quote(s) }
    {
        dir = $1; first = 2
        if ($first ~ /(^|\/)ccache$/) first++
        compiler = $first; file = ""; args = ""
        for (i = first + 1; i <= NF; i++)
            if ($i ~ /\.(c|cu)$/ && $(i - 1) != "-o") file = $i
        if (file == "" || seen[file]++) next
        nvcc = compiler ~ /nvcc$/
        if (!nvcc) args = quote(compiler)
        else if (file ~ /\.cu$/) {
            args = quote("clang++"); add("-xcuda"); add("--cuda-gpu-arch=sm_90")
        } else args = quote("gcc")
        if (nvcc) {
            cuda = compiler; sub(/(bin\/)?nvcc$/, "", cuda)
            add("-isystem"); add(cuda "include")
        }
        for (i = first + 1; i <= NF; i++) {
            if (nvcc && $i ~ /^-Xcompiler=/) {
                n = split(substr($i, 12), part, ",")
                for (j = 1; j <= n; j++) add(part[j])
            } else if (nvcc && $i ~ /^-(gencode|diag-suppress)$/) i++
            else if (nvcc && $i ~ /^-(fmad|cudart|gencode)/) continue
            else if ($i ~ /^-M(MD|P)$/) continue
            else add($i)
        }
        printf "%s{\"directory\": %s, \"file\": %s,\n \"arguments\": [%s]}",
            n_out++ ? ",\n" : "[\n", quote(dir), quote(file), args
    }
    END { print (n_out ? "" : "[") "\n]" }' >compile_commands.json.new
mv compile_commands.json.new compile_commands.json
echo "compile_commands.json: $(grep -c '"directory"' compile_commands.json) files"
