"""What learners answer in lesson 11, and a phrase that the explanation must hold."""

from llambda.course.exercises.engine_orders import add, load, store, until

# ---------------------------------------------------------------- 11.1


def everywhere(operations):
    return list(range(1, len(operations)))


def neighbours_only(operations):
    """Looks at the operation before, and no further back."""
    places = []
    for i in range(1, len(operations)):
        (_, reads, writes), (_, before, wrote) = operations[i], operations[i - 1]
        flows = any(wrote.get(b) == "own" for b, how in reads.items() if how == "all")
        spoils = any(before.get(b) == "all" for b, how in writes.items() if how == "own")
        if flows or spoils:
            places.append(i)
    return places


def careful(counts_read=None, counts_written=None, against=True, forgets=True, renewed=True):
    """A pass over the list, with some of its decisions taken otherwise."""

    def barriers(operations):
        places, read, written = [], set(), set()
        for i, (_, reads, writes) in enumerate(operations):
            looks = {b for b, how in reads.items() if how in (counts_read or ("all",))}
            changes = {b for b, how in writes.items() if how in (counts_written or ("own",))}
            if looks & written or (against and changes & read):
                places.append(i)
                if forgets:
                    read, written = set(), set()
            if renewed or i not in places:
                read |= looks
                written |= changes
        return places

    return barriers


def no_cache(operations):
    """Attention's buffers are left out."""
    return [
        i
        for i in careful()(operations)
        if not {"cache", "q"} & {b for b, how in operations[i].reads.items() if how == "all"}
    ]


def by_heart(operations):
    layer = [3, 4, 5, 7, 10, 12, 15, 16, 17, 19, 22]
    return [place for place in layer if place < len(operations)]


def early(operations):
    """A barrier right behind a write or a read, and not as late as it may stand."""
    places = set()
    for j, (_, reads, writes) in enumerate(operations):
        for i in reversed(range(j)):
            _, before, wrote = operations[i]
            flows = any(wrote.get(b) == "own" for b, how in reads.items() if how == "all")
            spoils = any(before.get(b) == "all" for b, how in writes.items() if how == "own")
            if (flows or spoils) and not any(i < place <= j for place in places):
                places.add(i + 1)
    return sorted(places)


def one_layer(operations):
    return [place for place in careful()(operations) if place != 12]


def after(operations):
    """The operation after which the barrier stands."""
    return [place - 1 for place in careful()(operations)]


def how_many(operations):
    return len(careful()(operations))


def names(operations):
    return [operations[i].name for i in careful()(operations)]


def prints(operations):
    careful()(operations)


# ---------------------------------------------------------------- 11.2


def never_reset(threads):
    yield add("arrived", 1)
    yield until("arrived", lambda count: count >= threads)


def never_last_again(threads):
    mine = yield load("generation")
    if (yield add("arrived", 1)) + 1 == threads:
        yield store("generation", mine + 1)
    else:
        yield until("generation", lambda now: now != mine)


def back_to_zero(threads):
    if (yield add("arrived", 1)) + 1 == threads:
        yield store("arrived", 0)
    else:
        yield until("arrived", lambda count: count == 0)


def late_generation(threads):
    if (yield add("here", 1)) + 1 == threads:
        yield store("here", 0)
        yield add("generation", 1)
    else:
        mine = yield load("generation")
        yield until("generation", lambda now: now > mine)


def generation_of_long_ago(threads):
    if (yield add("arrived", 1)) + 1 == threads:
        yield store("arrived", 0)
        yield add("generation", 1)
    else:
        yield until("generation", lambda now: now > 0)


def release_then_reset(threads):
    mine = yield load("generation")
    if (yield add("arrived", 1)) + 1 == threads:
        yield store("generation", mine + 1)
        yield store("arrived", 0)
    else:
        yield until("generation", lambda now: now != mine)


def two_steps(threads):
    mine = yield load("generation")
    count = yield load("arrived")
    yield store("arrived", count + 1)
    if count + 1 == threads:
        yield store("arrived", 0)
        yield store("generation", mine + 1)
    else:
        yield until("generation", lambda now: now != mine)


def of_two(threads):
    mine = yield load("generation")
    if (yield add("arrived", 1)) == 1:
        yield store("arrived", 0)
        yield store("generation", mine + 1)
    else:
        yield until("generation", lambda now: now != mine)


def multiples(threads):
    """Waits for exactly one count, which a fast thread runs over."""
    ticket = yield add("arrived", 1)
    complete = (ticket // threads + 1) * threads
    yield until("arrived", lambda count: count == complete)


def only_counts(threads):
    yield add("arrived", 1)


def waits_for_somebody(threads):
    yield add("arrived", 1)
    yield until("arrived", lambda count: count >= 1)


def spins(threads):
    yield add("arrived", 1)
    while (yield load("arrived")) < threads:
        pass


def one_too_many(threads):
    yield add("arrived", 1)
    yield until("arrived", lambda count: count > threads)


def plain(threads):
    return threads


def yields_text(threads):
    yield "arrived"


ROUND = [0]


def remembers(threads):
    """The number of the meeting stands in a global."""
    ROUND[0] += 1
    cell = f"arrived {(ROUND[0] - 1) // threads}"
    yield add(cell, 1)
    yield until(cell, lambda count: count >= threads)


WRONG = {
    "11.1": [
        ("everywhere", everywhere, "is all waiting"),
        ("neighbours only", neighbours_only, "They are no neighbours"),
        ("none between K's write and attention", no_cache, "nothing stands between turn and score"),
        ("one after the redundant norm", careful(counts_written=("own", "copy")), "a whole copy"),
        ("own parts", careful(counts_read=("own", "all")), "only what it wrote itself"),
        ("no write after a read", careful(against=False), "needs a barrier, too"),
        ("old writes stay", careful(forgets=False), "begin anew"),
        ("the operation behind a barrier left out", careful(renewed=False), "itself writes"),
        ("by heart", by_heart, "between a and b"),
        ("as early as possible", early, "as late as it may"),
        ("one layer", one_layer, "between add and norm"),
        ("after", after, "not behind which"),
        ("a count", how_many, "where they stand"),
        ("names", names, "of length 11 is none"),
        ("nothing returned", prints, "None is none"),
    ],
    "11.2": [
        ("count not reset", never_reset, "nobody has reset it"),
        ("count not reset, generation kept", never_last_again, "is the last to come any more"),
        ("back to zero", back_to_zero, "comes and goes again"),
        ("stale generation", generation_of_long_ago, "a stale generation"),
        ("generation read too late", late_generation, "is loaded after arriving"),
        ("released before reset", release_then_reset, "only then is the count reset"),
        ("two steps", two_steps, "an arrival is lost"),
        ("two of three", of_two, "with three somebody"),
        ("exactly that count", multiples, "one exact number"),
        ("only counts", only_counts, "nobody waits"),
        ("waits for itself", waits_for_somebody, "before the other has come"),
        ("spins", spins, "over and over"),
        ("one too many", one_too_many, "nobody ever goes on"),
        ("no generator", plain, "a generator is wanted"),
        ("yields a text", yields_text, "none of its steps"),
        ("a global", remembers, "outside of the cells"),
    ],
    "11.3": [
        ("cache omitted", 0.453, "the cache is omitted"),
        ("file size", 0.4625, "size of the file, and no cache"),
        ("file size and cache", 0.896, "for the bytes that a token reads"),
        ("cache alone", 0.433, "keys and values alone"),
        ("half of the cache", 0.670, "only half of the cache"),
        ("query heads", 1.753, "three times"),
        ("times layers", 13.45, "in all 30 layers"),
        ("percent", 88.6, "in percent"),
        ("rounded", 0.89, "three digits"),
        ("bits", 7.09, "bits"),
        ("inverse", 1.128, "the inverse"),
        ("what is left", 0.1136, "what is left"),
    ],
}
