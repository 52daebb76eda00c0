#!/usr/bin/env python3
"""Writes highs.json: chains, and what HiGHS (pip install highspy) says that the linear
programme of Stratos section 4.2 costs for them, with both directions in one programme.

A chain is the racks of the instances of each of its elements; cost, for a problem that has
one, is a matrix between racks, otherwise 1, and 0 within a rack."""
import json, random, sys
import highspy

def solve(elements, cost):
    c = lambda a, b: cost[a][b] if cost else int(a != b)
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    x, y, objective = {}, {}, 0
    for r in range(len(elements) - 1):
        k, l = len(elements[r]), len(elements[r + 1])
        for i, a in enumerate(elements[r]):
            for j, b in enumerate(elements[r + 1]):
                x[r, i, j] = h.addVariable(lb=0, ub=1)
                y[r, j, i] = h.addVariable(lb=0, ub=1)
                objective += 1 / k * c(a, b) * x[r, i, j] + 1 / l * c(b, a) * y[r, j, i]
                h.addConstr(1 / k * x[r, i, j] - 1 / l * y[r, j, i] == 0)
        for i in range(k):
            h.addConstr(sum(x[r, i, j] for j in range(l)) == 1)
        for j in range(l):
            h.addConstr(sum(y[r, j, i] for i in range(k)) == 1)
            h.addConstr(1 / k * sum(x[r, i, j] for i in range(k)) == 1 / l)
        for i in range(k):
            h.addConstr(1 / l * sum(y[r, j, i] for j in range(l)) == 1 / k)
    h.minimize(objective)
    assert h.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return h.getObjectiveValue()

def main():
    rng = random.Random(22)
    problems = [{"elements": [[0, 0, 1], [0, 0, 1, 1]]}]  # Figure 7
    while len(problems) < 200:
        racks = rng.randint(1, 6)
        most = rng.choice([3, 6, 12])
        p = {"elements": [[rng.randrange(racks) for _ in range(rng.randint(1, most))] for _ in range(rng.randint(2, 4))]}
        if len(problems) % 3 == 0:
            m = [[0] * racks for _ in range(racks)]
            for a in range(racks):
                for b in range(a):
                    m[a][b] = m[b][a] = rng.randint(1, 50)
            p["cost"] = m
        problems.append(p)
    for p in problems:
        p["highs"] = solve(p["elements"], p.get("cost"))
    with open(sys.argv[1], "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(p, separators=(",", ":")) for p in problems) + "\n]\n")

main()
