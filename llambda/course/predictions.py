"""Predict, then run: a reader's guesses, and what came of them.

A guess of `...` is none, and the lesson goes on. Guesses and outcomes are kept in the ledger, so
that a later lesson can put them side by side.
"""

from .ledger import as_number, names, recall, record


def predict(name: str, question: str, guess: object) -> None:
    """Keep a guess, before it is measured or computed. `question` names the quantity and unit."""
    if guess is ...:
        print("no guess yet: write a number in place of the dots, if you like")
        return
    number = as_number(guess)
    if number is None:
        print(f"a guess is a number, and {guess!r:.100} is none")
        return
    record(f"guess.{name}", {"question": question, "guess": number})
    noted = (
        "noted" if guessed(name) == number else "not kept, since the data cache cannot be written"
    )
    print(f"your guess for {question} is {noted}: {number:,.6g}")


def outcome(name: str, question: str, value: float) -> None:
    """Keep what came out, and compare it with the guess if there is one."""
    value = float(value)
    record(f"outcome.{name}", {"question": question, "outcome": value})
    guess = guessed(name)
    if guess is None:
        print(f"{question}: {value:,.4g}")
    else:
        ratio = f"{guess / value:.2g} times that" if value else "no share of it"
        print(f"{question}: {value:,.4g}; your guess was {guess:,.4g}, {ratio}")


def guessed(name: str) -> float | None:
    """The guess kept under a name, or None."""
    kept = recall(f"guess.{name}")
    return as_number(kept.get("guess")) if isinstance(kept, dict) else None


def table() -> str:
    """Every outcome beside its guess, as a Markdown table; lessons in order."""
    rows = [
        "| lesson | quantity | your guess | outcome | guess / outcome |",
        "|---|---|--:|--:|--:|",
    ]
    for entry in names("outcome."):
        name, kept = entry.removeprefix("outcome."), recall(entry)
        value = as_number(kept.get("outcome")) if isinstance(kept, dict) else None
        if value is None:
            continue
        guess = guessed(name)
        given = "none" if guess is None else f"{guess:,.4g}"
        ratio = "" if guess is None or not value else f"{guess / value:.2g}"
        rows.append(
            f"| {name.split('.')[0]} | {kept.get('question')} | {given} | {value:,.4g} | {ratio} |"
        )
    return "\n".join(rows)
