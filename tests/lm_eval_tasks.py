#!/usr/bin/env python3
"""The task files for lm-eval: lm_eval_tasks.py FOLDER.

Every file parses, and names functions that based.py has; these make the prompts and give the scores that the description of the tasks says. Where
lm-eval is installed it must list the tasks. Without PyYAML nothing is tested (status 77).
"""
import importlib.util
import pathlib
import sys


def must(condition, text):
    if not condition:
        raise AssertionError(text)


def load(path, functions):
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: getattr(functions, loader.construct_scalar(node).removeprefix("based.")))
    return yaml.load(path.read_text(encoding="utf-8"), Loader)


def check_functions(tasks):
    drop, trivia = tasks["based_drop"], tasks["based_triviaqa"]
    question = "The river is "
    for context, wanted in (("The river is 7 km long. THE RIVER IS", "The river is 7 km long. The river is"),
                            ("It rains...", "It rains. The river is"),
                            ("One. the river isthe river is", "One. The river is"), ("", ". The river is")):
        got = drop["doc_to_text"]({"context": context, "question": question})
        must(got == wanted, f"the prompt of {context!r}: {got!r}, not {wanted!r}")
    marked = {"context": "[DOC] [TLE] Rivers[PAR]It is long. The river is", "question": question}
    must(trivia["doc_to_text"](marked) == "RiversIt is long. The river is", f"marks: {trivia['doc_to_text'](marked)!r}")
    must("[DOC]" in drop["doc_to_text"](marked), "marks belong to TriviaQA alone")
    for answers, text, wanted in ((["7", "seven"], " Seven km", 1), (["7"], " eight", 0), (["a.c"], "abc", 0), (["a.c", "b"], "xB", 1), ([], "a", 0)):
        got = drop["process_results"]({"answers": answers}, [text])
        must(got == {"contains": wanted}, f"{answers} in {text!r}: {got}")
    must(drop["doc_to_target"]({"answers": ["7", "seven"]}) == "7", "the target is the first answer")


def main():
    folder = pathlib.Path(sys.argv[1])
    if importlib.util.find_spec("yaml") is None:
        print("lm_eval_tasks: skipped, without PyYAML")
        return 77
    spec = importlib.util.spec_from_file_location("based", folder / "based.py")
    functions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(functions)
    tasks = {path.stem: load(path, functions) for path in sorted(folder.glob("*.yaml"))}
    must(set(tasks) == {"based_triviaqa", "based_nq_2048", "based_drop"}, f"tasks: {set(tasks)}")
    for name, task in tasks.items():
        must(task["task"] == name and task["dataset_path"] == f"hazyresearch/{name}", f"{name}: {task}")
        must(task["generation_kwargs"]["until"] == ["\n"] and task["generation_kwargs"]["max_gen_toks"] == 48, f"{name}: {task}")
        must(callable(task["doc_to_text"]) and callable(task["process_results"]), f"{name}: {task}")
    check_functions(tasks)
    listed = importlib.util.find_spec("lm_eval") is not None
    if listed:
        from lm_eval.tasks import TaskManager
        known = TaskManager(include_path=str(folder), include_defaults=False).all_tasks
        must(set(tasks) <= set(known), f"lm-eval lists {known}")
    print(f"lm_eval_tasks: {len(tasks)} tasks{', listed by lm-eval' if listed else '; lm-eval is not here to list them'}")
    return 0


sys.exit(main())
