"""Question answering as the end of a text, for lm-eval: what the tasks of this folder have in common.

A prompt is the document, a full stop and the beginning of a sentence that the answer completes ("question"). Some documents end with that beginning
already: it is taken off there first. An answer is right if it contains one of the accepted ones, letters large or small.
"""
import re

MARKS = re.compile(r"\[(?:PAR|DOC|TLE)\]") # of paragraphs, documents and titles in TriviaQA


def prompt(document, question):
    document, question = document.strip(), question.strip()
    while question and document.lower().endswith(question.lower()):
        document = document[:len(document) - len(question)]
    return f"{document.strip().strip('.')}. {question}"


def doc_to_text(doc):
    return prompt(doc["context"], doc["question"])


def doc_to_text_marked(doc):
    return prompt(MARKS.sub("", doc["context"]), doc["question"])


def doc_to_target(doc):
    return doc["answers"][0] if doc["answers"] else ""


def process_results(doc, results):
    text = results[0].lower()
    return {"contains": int(any(answer.lower() in text for answer in doc["answers"]))}
