#!/usr/bin/env python3
"""What the compilers of Intel, Adreno, NVIDIA (NVK) and AMD make of every pipeline that a call can take, without the chips.

  tools/compilers/table.py [--known FILE [--update]] [--doc FILE] [--read] BUILD_DIR [CHIP...]
  tools/compilers/table.py --ranges BUILD_DIR [CHIP...]
  tools/compilers/table.py --log FILE [--doc FILE]

Runs BUILD_DIR/tests/compile_all once per chip of tools/compilers/chips.txt (all of them where none is named) with
tools/with-vulkan.sh fake:CHIP --statistics. BUILD_DIR/compilers/CHIP.jsonl gets a line of JSON a pipeline, CHIP.md
the same as a Markdown table, CHIP.log what the program wrote; a summary goes to stdout.

  --known FILE  also fails on what is bad (below) and not in FILE, or is worse than there
  --update      writes what is bad into that FILE instead. A chip that it has already can only lose lines or get smaller numbers
  --doc FILE    puts a table of these chips, without code of ranges, between the two <!-- table --> lines of a Markdown file, where other chips
                keep theirs
  --read        compiles nothing: takes the CHIP.jsonl of an earlier run
  --ranges      compiles the code of ranges of tiles of every pipeline that has some, and compares it with that of whole launches, which an
                earlier run has left in CHIP.jsonl: prints a line a chip, and what is bad and was not. Without it one such pipeline of each
                kernel is compiled beside the others
  --log FILE    prints the table of what compile_all and the layer wrote into FILE (mali.sh); --doc puts one line a row between the two
                <!-- mali --> lines

A pipeline is bad if registers spill, if it has memory of its own (scratch), or, on AMD, if a SIMD has room for fewer than
4 waves of it. Ends with 1 if a pipeline was not compiled or has no statistics, if one took more than 6 s of processor
time or has more shared memory than its row's capabilities promise, or as --known says; with 77 if a chip's driver is not
there."""
import argparse, json, pathlib, subprocess, sys

TOOLS = pathlib.Path(__file__).resolve().parent.parent
SLOWEST_MS = 6000  # 3 s are wanted; a busy machine takes up to twice as long
FEWEST_WAVES = {'radv': 4}
# Column, and what drivers call it: the first name that a pipeline has counts.
COLUMNS = {
    'instructions': ('Instructions', 'Instruction Count', 'Instruction count'),
    'registers': ('Max live registers', 'Registers used', 'Number of GPRs', 'VGPRs'),
    'spills': ('Spills', 'Spill Count', 'STP Count', 'Spills to memory', 'Spilled VGPRs'),
    'fills': ('Fills', 'Fill Count', 'LDP Count', 'Fills from memory'),
    'scratch': ('Scratch Memory Size', 'SLM size', 'Scratch size'),
    'waves': ('Max Waves Per Core', 'Max warps/SM', 'Subgroups per SIMD'),
    'shared': ('Workgroup Memory Size', 'LDS size'),
    'cycles': ('Cycles', 'Cycle Count', 'Static cycle count', 'Latency'),
}
BAD = ('spills', 'scratch', 'waves')


def chips():
    """Name -> (driver, description) of chips that dartlm can use, in the order of the list."""
    found = {}
    for line in (TOOLS / 'compilers/chips.txt').read_text().splitlines():
        if line and not line.startswith('#'):
            chip, driver, _, _, _, _, _, _, about = line.split(None, 8)
            if not about.startswith('unusable'):
                found[chip] = driver, about
    return found


def row_of(chip, pipeline, told):
    """A line of the table from what the layer told of a pipeline. A driver that made several programs of it runs one of
    them; the worst stands for all."""
    rows = []
    for part in told['parts']:
        values = {column: next((part['statistics'][name] for name in names if name in part['statistics']), None) for column, names in COLUMNS.items()}
        values['spills'] = (values['spills'] or 0) + part['statistics'].get('Spilled SGPRs', 0)
        rows.append({'chip': chip, 'pipeline': pipeline, 'subgroup': part['subgroup'], **values, 'ms': told['ms']})
    return max(rows, key=lambda row: (row['spills'], row['scratch'] or 0)) if rows else None


def parse(chip, text):
    """(device, rows, failures) from what compile_all and the layer wrote."""
    device, rows, failures, name, allowed = '', [], [], None, 0
    for line in text.splitlines():
        if line.startswith('device '):
            device = line[7:]
        elif line.startswith('pipeline '):
            if name:
                failures.append(f'{chip} {name}: not compiled')
            _, name, allowed = line.split()
        elif line.startswith('{') and name:
            row = row_of(chip, name, json.loads(line))
            if row:
                rows.append(row)
                if (row['shared'] or 0) > int(allowed):
                    failures.append(f'{chip} {name}: {row["shared"]} bytes of shared memory, {allowed} are promised')
            else:
                failures.append(f'{chip} {name}: no statistics')
            name = None
    if name:
        failures.append(f'{chip} {name}: not compiled')
    return device, rows, failures


def compile_all(chip, build, folder, *options):
    """(device, rows, failures) of a chip. Ends the program where the driver is not there."""
    command = [str(TOOLS / 'with-vulkan.sh'), 'fake:' + chip, '--statistics', '--', str(build / 'tests/compile_all'), *options]
    path = folder / f'{chip}{"".join(options)}.log'
    with open(path, 'w') as log:
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
    text = path.read_text(errors='replace')
    if status == 125:
        print('NOT RUN: ' + text.strip())
        sys.exit(77)
    device, rows, failures = parse(chip, text)
    if status != 0 or not rows:
        failures.append(f'{chip}: compile_all ended with {status}, its last line: {(text.strip() or "-").splitlines()[-1]}')
    return device, rows, failures


def bad(row, driver):
    """What is bad of a pipeline: column -> number."""
    few = FEWEST_WAVES.get(driver, 0)
    values = {column: row[column] for column in ('spills', 'scratch') if row[column]}
    if row['waves'] is not None and row['waves'] < few:
        values['waves'] = row['waves']
    return values


def worse(column, value, known):
    return known is None or (value < known if column == 'waves' else value > known)


def read_known(path):
    """Chip -> pipeline -> column -> number."""
    known = {}
    if path.exists():
        for line in path.read_text().splitlines():
            if line and not line.startswith('#'):
                chip, pipeline, *values = line.split()
                known.setdefault(chip, {})[pipeline] = {name: int(value) for name, value in (pair.split('=') for pair in values)}
    return known


def write_known(path, known):
    with open(path, 'w') as out:
        out.write('# Pipelines that spill or use scratch, or hold too few waves, made by: tools/compilers/table.py --known FILE --update\n')
        for chip in chips():
            for pipeline, values in sorted(known.get(chip, {}).items()):
                out.write(' '.join([chip, pipeline] + [f'{column}={values[column]}' for column in BAD if column in values]) + '\n')


def compare(chip, found, known):
    """Lines that say what is worse than known. Code of ranges may be as bad as that of whole launches is known to be."""
    lines = []
    for pipeline, values in found.items():
        before = known.get(pipeline, known.get(pipeline.removesuffix('-range'), {}))
        for column, value in values.items():
            if worse(column, value, before.get(column)):
                lines.append(f'{chip} {pipeline}: {column} {value}, known {before.get(column, "none")}')
    return lines


def text_of(value):
    return '-' if value is None else str(value)


def markdown(head, lines):
    rows = ['| ' + ' | '.join(map(text_of, line)) + ' |' for line in lines]
    return '\n'.join(['| ' + ' | '.join(head) + ' |', '|' + '---|' * len(head)] + rows) + '\n'


def row_name(row):
    """kernel.variant of a pipeline: its types make little difference."""
    return row['pipeline'].rsplit('.', 1)[0]


def chip_line(about, rows):
    """A chip's cells of the first table, without its name."""
    spilling = [row for row in rows if row['spills']]
    widths = sorted({row['subgroup'] for row in rows})
    slowest = max(rows, key=lambda row: row['ms'])
    return [about, len(rows), ', '.join(f'{w}: {sum(row["subgroup"] == w for row in rows)}' for w in widths), len(spilling),
            sum(1 for row in rows if row['scratch']), sum(row['spills'] for row in rows), f'{sum(row["ms"] for row in rows) / 1e3:.0f}',
            f'{slowest["ms"] / 1e3:.1f} {slowest["pipeline"]}']


def chip_table(driver, device, rows):
    """The worst pipeline of each row that is bad; nothing where none is."""
    kernels = {}
    for row in rows:
        if bad(row, driver) and row['spills'] >= kernels.get(row_name(row), row)['spills']:
            kernels[row_name(row)] = row
    worst = sorted(kernels.values(), key=lambda row: (-row['spills'], -(row['scratch'] or 0), row['pipeline']))
    columns = ('spills', 'fills', 'scratch', 'instructions', 'registers', 'subgroup', 'waves')
    return f'{device}\n\n' + markdown(['row', *columns], [[row['pipeline']] + [row[c] for c in columns] for row in worst]) if worst else ''


def doc_tables(results, before):
    """The tables of the chips that were asked; those of others stay as they are in `before`."""
    listed = chips()
    cells = [[cell.strip() for cell in line.split('|')[1:-1]] for line in before.splitlines()]
    lines = {line[0]: line[1:] for line in cells if line and line[0] in listed}
    tables = {part.split('\n', 1)[0]: part.split('\n', 1)[1].strip() + '\n' for part in before.split('\n### ')[1:]}
    for chip, (device, rows) in results.items():
        lines[chip] = chip_line(listed[chip][1], rows)
        tables[chip] = chip_table(listed[chip][0], device, rows)
    head = ['chip', 'stands for', 'pipelines', 'of subgroup', 'spill', 'scratch', 'spills, all', 's', 'slowest, s']
    return markdown(head, [[chip] + lines[chip] for chip in listed if chip in lines]) + ''.join(
        f'\n### {chip}\n\n{tables[chip]}' for chip in listed if tables.get(chip))


def write_between(path, mark, table_of):
    """table_of(what stands there now)"""
    before, now, after = path.read_text().split(mark + '\n')
    path.write_text(f'{before}{mark}\n\n{table_of(now)}\n{mark}\n{after}')


def log_doc(rows, failures):
    """A line a row, of all types that were asked: the largest numbers. The worst come first."""
    kernels = {}
    for row in rows:
        kernels.setdefault(row_name(row), []).append(row)
    lines = [[name, ', '.join(sorted(row['pipeline'].rsplit('.', 1)[1] for row in of)), *(max(row[c] or 0 for row in of) for c in
              ('spills', 'fills', 'instructions')), f'{max(row["ms"] for row in of) / 1e3:.0f}'] for name, of in kernels.items()]
    lines.sort(key=lambda line: (-line[2], -line[3], line[0]))
    lines += [[failure.strip(), '', '-', '-', '-', '-'] for failure in failures]
    return markdown(['row', 'types', 'spills', 'fills', 'instructions', 's under qemu'], lines)


def print_log(path, doc):
    device, rows, failures = parse('', path.read_text(errors='replace'))
    if doc:
        write_between(doc, '<!-- mali -->', lambda _: f'{device}\n\n' + log_doc(rows, failures))
    rows.sort(key=lambda row: -row['spills'])
    columns = ('pipeline', 'spills', 'fills', 'instructions', 'registers', 'waves', 'shared', 'ms')
    print(f'{device}\n\n' + markdown(columns, [[row[c] for c in columns] for row in rows]), end='')
    for failure in failures:
        print('BAD' + failure)
    return 1 if failures or not rows else 0


def read_rows(path):
    """(device, rows) of a CHIP.jsonl."""
    first, *lines = path.read_text().splitlines()
    return json.loads(first)['device'], [json.loads(line) for line in lines]


def compare_ranges(chip, build, folder):
    """Prints how the code of ranges differs from that of whole launches. What is wrong with it."""
    whole = {row['pipeline']: row for row in read_rows(folder / f'{chip}.jsonl')[1]}
    _, rows, failures = compile_all(chip, build, folder, '--ranges')
    pairs = [(whole[row['pipeline'].removesuffix('-range')], row) for row in rows]
    driver = chips()[chip][0]
    same = sum(all(w[c] == r[c] for c in ('spills', 'scratch', 'registers', 'waves', 'subgroup')) for w, r in pairs)
    def most(column):
        grown = [(r[column] - w[column], r['pipeline']) for w, r in pairs if w[column] is not None and r[column] is not None]
        return '{:+d} ({})'.format(*max(grown)) if grown else '-'
    def share(column):
        return f'{sum(r[column] or 0 for _, r in pairs) / max(1, sum(w[column] or 0 for w, _ in pairs)):.4f}'
    print(f'{chip}: {len(pairs)} pipelines of ranges, {same} with as many registers, waves and lanes, as much scratch and as few spills '
          f'as the whole; instructions x {share("instructions")}, at most {most("instructions")}; registers at most {most("registers")}', flush=True)
    for w, r in pairs:
        failures += compare(chip, {r['pipeline']: bad(r, driver)}, {r['pipeline']: bad(w, driver)})
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument('--known', type=pathlib.Path)
    parser.add_argument('--update', action='store_true')
    parser.add_argument('--doc', type=pathlib.Path)
    parser.add_argument('--read', action='store_true')
    parser.add_argument('--ranges', action='store_true')
    parser.add_argument('--log', type=pathlib.Path)
    parser.add_argument('build', type=pathlib.Path, nargs='?')
    parser.add_argument('chips', nargs='*')
    options = parser.parse_args()
    if options.log:
        return print_log(options.log, options.doc)
    if not options.build:
        parser.error('BUILD_DIR is missing')
    listed = chips()
    for chip in options.chips:
        if chip not in listed:
            sys.exit(f'table.py: unknown chip {chip}; tools/compilers/chips.txt lists those that are known')
    folder = options.build / 'compilers'
    folder.mkdir(exist_ok=True)
    known = read_known(options.known) if options.known else {}
    results, failures = {}, []
    for chip in options.chips or listed:
        path = folder / f'{chip}.jsonl'
        if options.ranges:
            failures += compare_ranges(chip, options.build, folder)
            results[chip] = None
            continue
        if options.read:
            if not path.exists():
                continue
            device, rows = read_rows(path)
        else:
            device, rows, failed = compile_all(chip, options.build, folder)
            failures += failed
            path.write_text('\n'.join([json.dumps({'chip': chip, 'device': device})] + [json.dumps(row) for row in rows]) + '\n')
            columns = ['pipeline', 'subgroup', *COLUMNS, 'ms']
            (folder / f'{chip}.md').write_text(f'{device}\n\n' + markdown(columns, [[row[c] for c in columns] for row in rows]))
        if not rows:
            continue
        results[chip] = device, [row for row in rows if not row['pipeline'].endswith('-range')]
        failures += [f'{chip} {row["pipeline"]}: {row["ms"] / 1e3:.1f} s to compile' for row in rows if row['ms'] > SLOWEST_MS]
        found = {row['pipeline']: values for row in rows if (values := bad(row, listed[chip][0]))}
        slowest = max(rows, key=lambda row: row['ms'])
        print(f'{chip}: {device}: {len(rows)} pipelines, {len(found)} bad; {sum(row["ms"] for row in rows) / 1e3:.0f} s of compiling, '
              f'the slowest {slowest["pipeline"]} {slowest["ms"] / 1e3:.1f} s', flush=True)
        grown = compare(chip, found, known.get(chip, {})) if options.known else []
        if options.update and (not grown or chip not in known):
            known[chip] = found
        else:
            failures += grown
            better = [pipeline for pipeline, values in known.get(chip, {}).items()
                      if values != found.get(pipeline) and not compare(chip, {pipeline: found.get(pipeline, {})}, known[chip])]
            if better and options.known:
                print(f'{chip}: {len(better)} pipelines are better than {options.known} says; --update makes that the rule')
    if options.update:
        write_known(options.known, known)
    if options.doc and not options.ranges:
        write_between(options.doc, '<!-- table -->', lambda now: doc_tables(results, now))
    for failure in failures:
        print('BAD ' + failure)
    return 1 if failures or not results else 0


sys.exit(main())
