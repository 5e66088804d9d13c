#!/usr/bin/env python3
"""Manual pages and completions for the program, from what its --help prints: make_manual.py PROGRAM OUTDIR.

OUTDIR/man/dartlm.1.gz and dartlm-COMMAND.1.gz, OUTDIR/completions/{bash,zsh,fish}. A command whose help names `dartlm COMMAND TASK` with a help of
its own has a page for each such task.
"""
import gzip
import pathlib
import re
import subprocess
import sys

COMMAND = re.compile(r"^  ([a-z]+) +(\S.*)$")
OPTION = re.compile(r"^ {2,6}(?:(-\w), )?(--[a-z0-9-]+)(?: (\S+))?(?:  +(\S.*))?$")
TASK = re.compile(r"dartlm ([a-z]+) ([a-z]+) ")


def help_of(program, *words):
    return subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True).stdout


def sections(text):
    """Usage lines, paragraphs, options as [letter, name, value, help]."""
    head, _, tail = text.partition("\noptions:\n")
    usage, _, about = head.partition("\n\n")
    options = []
    for line in tail.splitlines():
        match = OPTION.match(line)
        if match:
            options.append([match[1], match[2], match[3], match[4] or ""])
        elif line.strip() and options:
            options[-1][3] = f"{options[-1][3]} {line.strip()}".strip()
    return usage.removeprefix("usage: "), [" ".join(part.split()) for part in about.split("\n\n") if part.strip()], options


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def page(name, about, usage, paragraphs, options, version, more):
    lines = [f'.TH {name.upper()} 1 "" "dartlm {version}" "User Commands"', ".SH NAME", roff(f"{name} - {about}"), ".SH SYNOPSIS", ".nf"]
    lines += [roff(line.strip()) for line in usage.splitlines()] + [".fi", ".SH DESCRIPTION"]
    for paragraph in paragraphs:
        lines += [roff(paragraph), ".PP"]
    lines = lines[:-1] if lines[-1] == ".PP" else lines
    if options:
        lines.append(".SH OPTIONS")
    for letter, option, value, text in options:
        names = [f"\\fB{roff(word)}\\fR" for word in (letter, option) if word]
        lines += [".TP", ", ".join(names) + (f" \\fI{roff(value)}\\fR" if value else ""), roff(text)]
    compares = name == "dartlm" or any("--compare" in option for _, option, _, _ in options)
    worse = roff(" 3: --compare has found something that became worse.") if compares else ""
    lines += [".SH EXIT STATUS", "0: done. 1: it failed. 2: a mistake on the command line." + worse]
    lines += [".SH SEE ALSO", ", ".join(f"\\fB{roff(other)}\\fR(1)" for other in more if other != name)] if more else []
    return "\n".join(lines) + "\n"


def write_page(path, text):
    """Without a name and a time in the file, so that the same text makes the same bytes."""
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def bash(table):
    cases = []
    for words, options in table.items():
        tasks = [other.split()[-1] for other in table if other.startswith(words + " ")]
        cases.append(f'    "{words}") words="{" ".join(tasks + [o for _, o, _, _ in options])}" ;;')
    two = "|".join(f'"{words}"' for words in table if " " in words)
    return f"""# Completion of dartlm for bash.
_dartlm()
{{
    local current=${{COMP_WORDS[COMP_CWORD]}} words="" command="${{COMP_WORDS[1]}}"
    case "$command ${{COMP_WORDS[2]}}" in {two}) ((COMP_CWORD > 2)) && command="$command ${{COMP_WORDS[2]}}" ;; esac
    ((COMP_CWORD == 1)) && command=""
    case "$command" in
    "") words="{" ".join(words for words in table if " " not in words)} --help --version" ;;
{chr(10).join(cases)}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [[ $current == -* || $COMP_CWORD -eq 1 ]] || COMPREPLY+=($(compgen -f -- "$current"))
}}
complete -o filenames -F _dartlm dartlm
"""


def quoted(text):
    return text.replace("'", "'\\''")


ZSH = str.maketrans({"[": "(", "]": ")", ":": " -"}) # what _arguments reads as syntax


def zsh(table, abouts):
    cases = []
    for words, options in table.items():
        specs = [f"'{option}[{quoted(text.translate(ZSH))}]{f':{value}:_files' if value else ''}'" for _, option, value, text in options]
        tasks = [other.split()[-1] for other in table if other.startswith(words + " ")]
        first = f"'1:task:({' '.join(tasks)})' " if tasks else ""
        cases.append(f"    '{words}') _arguments {first}{' '.join(specs)} '*:file:_files' ;;")
    commands = " ".join(f"'{words}:{quoted(about)}'" for words, about in abouts.items())
    two = "|".join(f"'{words}'" for words in table if " " in words)
    return f"""#compdef dartlm
local -a commands=({commands})
if (( CURRENT == 2 )); then
    _describe command commands
    return
fi
local command=$words[2]
shift words; (( CURRENT-- ))
case "$command $words[2]" in
    {two}) if (( CURRENT > 2 )); then command="$command $words[2]"; shift words; (( CURRENT-- )); fi ;;
esac
case $command in
{chr(10).join(cases)}
esac
"""


def fish(table, abouts):
    lines = ["# Completion of dartlm for fish."]
    lines += [f"complete -c dartlm -n __fish_use_subcommand -f -a {words} -d '{quoted(about)}'" for words, about in abouts.items()]
    for words, options in table.items():
        first, *task = words.split()
        seen = f"__fish_seen_subcommand_from {first}" + (f"; and __fish_seen_subcommand_from {task[0]}" if task else "")
        if task:
            lines.append(f"complete -c dartlm -n '__fish_seen_subcommand_from {first}' -a {task[0]}")
        for letter, option, value, text in options:
            lines.append(f"complete -c dartlm -n '{seen}' -l {option[2:]}" + (f" -s {letter[1:]}" if letter else "") + (" -r" if value else "") +
                         f" -d '{quoted(text)}'")
    return "\n".join(lines) + "\n"


def main():
    program, out = sys.argv[1], pathlib.Path(sys.argv[2])
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    top = help_of(program)
    abouts = dict(match.groups() for line in top.splitlines() if (match := COMMAND.match(line)))
    table, pages = {}, {}
    for command in abouts:
        text = help_of(program, command)
        pages[command] = text
        tasks = re.findall(r"Tasks: (.*?)\.", " ".join(text.split()))
        names = [task.split()[0] for task in tasks[0].split(",")] if tasks else [task for own, task in TASK.findall(text) if own == command]
        for task in dict.fromkeys(names):
            if task not in ("help", "options"):
                pages[f"{command} {task}"] = help_of(program, command, task)
    for folder in (out / "man", out / "completions"):
        folder.mkdir(parents=True, exist_ok=True)
    names = ["dartlm"] + ["dartlm-" + words.replace(" ", "-") for words in pages]
    listing = [f"{command}: {about}." for command, about in abouts.items()]
    paragraphs = ["The commands, each with a page of its own:", *listing]
    write_page(out / "man/dartlm.1", page("dartlm", "run and train the DART sequence model", "dartlm COMMAND ...", paragraphs, [], version, names))
    for words, text in pages.items():
        usage, paragraphs, options = sections(text)
        table[words] = options
        name = "dartlm-" + words.replace(" ", "-")
        about = abouts[words.split()[0]] + (f": {words.split()[1]}" if " " in words else "")
        more = ["dartlm"] + [other for other in names if other.startswith(name + "-")]
        write_page(out / f"man/{name}.1", page(name, about, usage, paragraphs, options, version, more))
    (out / "completions/bash").write_text(bash(table))
    (out / "completions/zsh").write_text(zsh(table, abouts))
    (out / "completions/fish").write_text(fish(table, abouts))


main()
