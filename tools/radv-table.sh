#!/usr/bin/env bash
# What AMD's compiler makes of every compute pipeline, without the chips.
#
#   tools/radv-table.sh [--hot REGEXP] BUILD_DIR [FAMILY...]      (default: vega10 navi10 navi21 navi31)
#
# Runs BUILD_DIR/tests/compile_all once per family. That program creates every pipeline of the library on the
# only device it sees and writes "pipeline NAME" to stderr before each; Mesa writes the statistics there too.
# The table goes to BUILD_DIR/radv-table.tsv, one line per family and pipeline, and a summary to stdout:
#
#   sgprs, vgprs     registers per wave, as allocated (spilled_*: those that did not fit)
#   lds, scratch     bytes of shared memory per workgroup, of memory standing in for registers per wave
#   occupancy        waves that a SIMD can hold; more hide more latency
#   latency          the compiler's estimate of one wave's cycles
#   inv_throughput   the compiler's estimate of cycles per wave when the SIMD is full
#
# Ends with 1 if a kernel spills or uses scratch, if a pipeline yields no statistics, or if compile_all fails; with
# --hot also if a pipeline whose "FAMILY NAME" matches holds fewer than 4 waves, or if none of a family's matches.
set -eu

tools=$(cd "$(dirname "$0")" && pwd)

die() { printf 'radv-table: %s\n' "$*" >&2; exit 1; }

usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"; }

# Mesa's label for each column, in the columns' order.
columns='SGPRs|VGPRs|Spilled SGPRs|Spilled VGPRs|LDS size|Scratch size|Subgroups per SIMD|Instructions|Code size|Latency|Inverse Throughput'
header='family pipeline sgprs vgprs spilled_sgprs spilled_vgprs lds scratch occupancy instructions code_bytes latency inv_throughput'

# Log of one family on stdin -> table rows. A pipeline that was announced but has no statistics gets dashes.
parse() {
    awk -v family="$1" -v columns="$columns" '
        function dashes(  i, row) {
            if (name == "" || rows) return
            row = family "\t" name
            for (i = 1; i <= n; i++) row = row "\t-"
            print row
        }
        BEGIN { n = split(columns, label, "|") }
        $1 == "pipeline" { dashes(); name = $2; rows = 0 }
        /SHADER STATS/ { inside = 1; split("", value); next }
        inside && /^\*+$/ {
            inside = 0
            row = family "\t" (name == "" ? "?" : name)
            for (i = 1; i <= n; i++) row = row "\t" (label[i] in value ? value[label[i]] : "-")
            print row
            rows++
            next
        }
        inside && /: / {
            at = index($0, ": ")
            value[substr($0, 1, at - 1)] = substr($0, at + 2)
        }
        END { dashes() }'
}

# A table on stdin -> a few lines per family, then what is wrong. Status 1 if anything is.
summarise() {
    awk -F '\t' -v hot="$1" '
        NR == 1 { next }
        !($1 in count) { families[++f] = $1 }
        { count[$1]++ }
        $3 == "-" { bad[++b] = $1 " " $2 ": no statistics"; next }
        $5 + $6 + $8 > 0 {
            bad[++b] = sprintf("%s %s: %d SGPRs and %d VGPRs spilled, %d bytes of scratch", $1, $2, $5, $6, $8)
        }
        hot != "" && $1 " " $2 ~ hot {
            hot_count[$1]++
            if ($9 + 0 < 4) bad[++b] = sprintf("%s %s: %d waves for %d VGPRs and %d bytes of LDS", $1, $2, $9, $4, $7)
        }
        $4 + 0 >= vgprs[$1] + 0 { vgprs[$1] = $4; vgprs_of[$1] = $2 }
        $7 + 0 >= lds[$1] + 0 { lds[$1] = $7; lds_of[$1] = $2 }
        !($1 in waves) || $9 + 0 < waves[$1] { waves[$1] = $9 + 0; waves_of[$1] = $2 }
        END {
            for (i = 1; i <= f; i++) {
                g = families[i]
                if (!(g in waves)) continue
                printf "%-8s %d pipelines; most VGPRs %d (%s); most LDS %d (%s); lowest occupancy %d (%s)\n",
                    g, count[g], vgprs[g], vgprs_of[g], lds[g], lds_of[g], waves[g], waves_of[g]
            }
            for (i = 1; hot != "" && i <= f; i++)
                if (!(families[i] in hot_count)) bad[++b] = families[i] ": no hot pipeline"
            for (i = 1; i <= b; i++) print "BAD      " bad[i]
            exit b > 0
        }'
}

# Appends the family's rows to the table and keeps the log for reading.
compile_family() {
    local family=$1 program=$2 table=$3 log=$4 status=0
    RADV_DEBUG=shaderstats,nocache "$tools/with-vulkan.sh" "radv:$family" -- "$program" >"$log" 2>&1 || status=$?
    parse "$family" <"$log" >>"$table"
    [ $status = 0 ] && return 0
    printf 'radv-table: %s on %s ended with %d; the end of %s:\n' "${program##*/}" "$family" $status "$log" >&2
    tail -n 5 "$log" >&2
    return 1
}

main() {
    local build program table family hot='' failed=0
    case ${1:-} in
    -h | --help) usage; exit 0 ;;
    --hot) hot=${2:?a regular expression}; shift 2 ;;
    esac
    [ $# -gt 0 ] || { usage >&2; exit 1; }
    build=$1
    shift
    [ $# -gt 0 ] || set -- vega10 navi10 navi21 navi31
    program=$build/tests/compile_all
    table=$build/radv-table.tsv
    [ -x "$program" ] || die "$program is not built"

    printf '%s\n' "${header// /$'\t'}" >"$table"
    for family; do
        compile_family "$family" "$program" "$table" "$build/radv-$family.log" || failed=1
    done
    [ "$(wc -l <"$table")" -gt 1 ] || die "no pipeline was compiled"
    summarise "$hot" <"$table" || failed=1
    printf 'table: %s\n' "$table"
    return $failed
}

main "$@"
