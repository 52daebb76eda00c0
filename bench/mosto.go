package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath/plan/paths"
)

const (
	mostoLargest = "largest graph"
	mostoMesh    = "1,000 nodes"
	mostoLookup  = "look-up by ingress, egress and size"

	metricPaths  = "all paths"
	metricLookup = "look-up"
	metricRelays = "relays"                      // mean
	metricGain   = "pairs that gain"             // share of all pairs
	metric90     = "gain of the 90th percentile" // 0.4: the other path takes 40 % longer
	metric99     = "gain of the 99th percentile"
)

// mostoMeshNodes is the size of the random mesh; round trips are distances in a plane with
// up to half as much again for detours, so that chains pay.
const mostoMeshNodes = 1000

func mostoBenchmark() Benchmark {
	return Benchmark{
		Name: "mosto", rounds: 2, cost: cost{5 * time.Second, 12 * time.Second},
		Question: "what do the chains of relays for all pairs cost to compute, and what do they gain? (MOSTO §V.A: 115 nodes in less than 1 s)",
		Targets: []Target{
			{Text: "largest graph of --graphs (115 nodes) ≤ 50 ms", Case: mostoLargest, Contestant: "onpath", Metric: metricPaths, Max: 50},
			{Text: "1,000 nodes ≤ 60 s", Case: mostoMesh, Contestant: "onpath", Metric: metricPaths, Max: 60_000},
			{Text: "look-up ≤ 1 µs", Case: mostoLookup, Contestant: "onpath", Metric: metricLookup, Max: 1000},
		},
		run: runMosto,
	}
}

func runMosto(ctx context.Context, r *Run) error {
	graphs, err := readGraphs(r.Graphs)
	if err != nil {
		return err
	}
	if len(graphs) == 0 {
		r.skip(mostoLargest, "--graphs names no folder with *.edges.lat files (Rocketfuel's maps of PoPs)")
	}
	for round := range r.Rounds() {
		for _, g := range graphs {
			if err := ctx.Err(); err != nil {
				return err
			}
			start := time.Now()
			front := paths.Compute(g.distances)
			if g == graphs[len(graphs)-1] {
				r.sample(mostoLargest, "onpath", metricPaths, "ms", round, float64(time.Since(start))/1e6)
			}
			if round == 0 {
				if err := sameAsRecursion(g, front); err != nil {
					return err
				}
			}
		}
		if err := r.mostoMesh(round); err != nil {
			return err
		}
	}
	r.mostoGains(graphs)
	return nil
}

func (r *Run) mostoMesh(round int) error {
	nodes := pick(r, mostoMeshNodes, 100)
	r.say("%d nodes, round %d of %d", nodes, round+1, r.Rounds())
	d, err := randomMesh(nodes, uint64(round+1))
	if err != nil {
		return err
	}
	start := time.Now()
	front := paths.Compute(d)
	r.sample(mostoMesh, "onpath", metricPaths, "ms", round, float64(time.Since(start))/1e6)
	rows := make([]paths.Row, nodes)
	for to := range nodes {
		rows[to] = front.Row(0, to)
	}
	const looks = 1_000_000
	rng := rand.New(rand.NewPCG(uint64(round), 0))
	keys := make([]struct {
		to    int
		bytes int64
	}, 1<<12)
	for i := range keys {
		keys[i].to, keys[i].bytes = 1+rng.IntN(nodes-1), rng.Int64N(10<<20)
	}
	relays := 0
	start = time.Now()
	for i := range looks {
		k := keys[i&(len(keys)-1)]
		relays += rows[k.to].Best(k.bytes).Relays()
	}
	took := time.Since(start)
	if relays == 0 {
		return errors.New("no path of the mesh has a relay")
	}
	r.sample(mostoLookup, "onpath", metricLookup, "ns", round, float64(took)/looks)
	return nil
}

func randomMesh(nodes int, seed uint64) (*paths.Distances, error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	d, err := paths.NewDistances(nodes)
	if err != nil {
		return nil, err
	}
	type place struct{ x, y float64 }
	at := make([]place, nodes)
	for i := range at {
		at[i] = place{rng.Float64() * 100, rng.Float64() * 60}
	}
	for a := range nodes {
		for b := range a {
			x, y := at[a].x-at[b].x, at[a].y-at[b].y
			ms := (max(x, -x) + max(y, -y)) * (1 + rng.Float64()/2)
			if err := d.Set(a, b, time.Duration(ms*1e6)+time.Microsecond); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

// graph is one network of --graphs.
type graph struct {
	name      string
	distances *paths.Distances
}

// Graphs of the paper are connected and have at least seven nodes.
const mostoSmallest = 7

// mostoLongest is the longest one-way delay of an edge that a map may name, in ms.
const mostoLongest = 60_000

// readGraphs reads all graphs of a folder, the largest last; "" is none.
func readGraphs(folder string) (list []*graph, err error) {
	if folder == "" {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.edges.lat"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("--graphs %s: the folder has no file *.edges.lat", folder)
	}
	for _, f := range files {
		g, err := readGraph(f)
		if err != nil {
			return nil, err
		}
		if g != nil {
			list = append(list, g)
		}
	}
	slices.SortStableFunc(list, func(a, b *graph) int { return cmp.Compare(a.distances.Nodes(), b.distances.Nodes()) })
	return list, nil
}

// readGraph reads lines "A -> B MILLISECONDS", one way, and makes a full mesh of shortest
// ways. It gives nil for a graph that is too small or not connected.
func readGraph(file string) (*graph, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	number := map[string]int{}
	type edge struct {
		a, b int
		rtt  time.Duration
	}
	var edges []edge
	in := bufio.NewScanner(f)
	for line := 1; in.Scan(); line++ {
		a, rest, ok := strings.Cut(in.Text(), " -> ")
		cut := strings.LastIndexByte(rest, ' ')
		if !ok || cut < 0 {
			return nil, fmt.Errorf("%s:%d: want A -> B MILLISECONDS", file, line)
		}
		ms, err := strconv.ParseFloat(rest[cut+1:], 64)
		if err != nil || !(ms >= 0 && ms <= mostoLongest) {
			return nil, fmt.Errorf("%s:%d: %q is no number of milliseconds from 0 to %d", file, line, rest[cut+1:], mostoLongest)
		}
		for _, n := range []string{a, rest[:cut]} {
			if _, ok := number[n]; !ok {
				number[n] = len(number)
			}
		}
		edges = append(edges, edge{number[a], number[rest[:cut]], time.Duration(2 * ms * 1e6)})
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	if len(number) < mostoSmallest {
		return nil, nil
	}
	d, err := paths.NewDistances(len(number))
	if err != nil {
		return nil, err
	}
	for _, e := range edges {
		if e.a == e.b {
			continue
		}
		if old := d.RTT(e.a, e.b); old == 0 || e.rtt < old {
			if err := d.Set(e.a, e.b, max(e.rtt, time.Microsecond)); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	d.Close()
	for n := range len(number) - 1 {
		if d.RTT(0, n+1) == 0 {
			return nil, nil
		}
	}
	return &graph{filepath.Base(file), d}, nil
}

// sameAsRecursion holds all paths against Appendix A's recursion as it stands there: one
// step for each pair and each leg.
func sameAsRecursion(g *graph, f *paths.Front) error {
	const far = time.Duration(1) << 60
	n := g.distances.Nodes()
	type leg struct {
		a, b int
		rtt  time.Duration
	}
	var legs []leg
	dist := make([]time.Duration, n*n)
	for a := range n {
		for b := range n {
			if dist[a*n+b] = far; a == b {
				dist[a*n+b] = 0
			} else if rtt := g.distances.RTT(a, b); b > a && rtt > 0 {
				legs = append(legs, leg{a, b, rtt})
			}
		}
	}
	slices.SortFunc(legs, func(x, y leg) int { return cmp.Compare(x.rtt, y.rtt) })
	next := make([]int, n*n) // the first option that is longer than the bound
	for h, l := range legs {
		fromA, fromB := slices.Clone(dist[l.a*n:l.a*n+n]), slices.Clone(dist[l.b*n:l.b*n+n])
		last := h+1 == len(legs) || legs[h+1].rtt > l.rtt
		for i := range n {
			for j := range i {
				p := i*n + j
				dist[p] = min(dist[p], fromA[i]+l.rtt+fromB[j], fromB[i]+l.rtt+fromA[j])
				dist[j*n+i] = dist[p]
				if !last {
					continue
				}
				sum := far
				for ; next[p] < f.Options(i, j); next[p]++ {
					if _, longest, _ := f.Sizes(i, j, next[p]); longest > l.rtt {
						break
					}
				}
				if next[p] > 0 {
					sum, _, _ = f.Sizes(i, j, next[p]-1)
				}
				if sum != dist[p] {
					return fmt.Errorf("%s: from %d to %d with legs up to %v: %v, by the plain recursion %v", g.name, i, j, l.rtt, sum, dist[p])
				}
			}
		}
	}
	return nil
}

// Whose paths the chosen ones are compared with. Of the paths whose longest leg is the
// shortest there are many: the paper does not say which one it means.
const (
	mostoShortest = "shortest path"
	mostoMinimax  = "minimax path, the shortest"
	mostoTree     = "minimax path, by spanning tree"
)

// mostoGains compares the chosen paths with others of each pair (Figure 3; "Number of
// proxies").
func (r *Run) mostoGains(graphs []*graph) {
	if len(graphs) == 0 {
		return
	}
	for _, rounds := range []int{1, 5, 10} {
		gains, relays, pairs := map[string][]float64{}, map[string]float64{}, 0.0
		for _, g := range graphs {
			f := paths.Compute(g.distances)
			tree := spanningTree(g.distances)
			for i := range g.distances.Nodes() {
				byTree := tree.paths(i)
				for j := range i {
					best := f.Path(i, j, f.Best(i, j, rounds))
					pairs++
					relays["onpath"] += float64(best.Relays())
					for other, p := range map[string]paths.Path{
						mostoShortest: f.Path(i, j, f.Best(i, j, 1)), mostoMinimax: minimaxPath(f, i, j), mostoTree: byTree[j],
					} {
						gains[other] = append(gains[other], float64(p.Transfer(rounds))/float64(best.Transfer(rounds))-1)
						relays[other] += float64(p.Relays())
					}
				}
			}
		}
		kase := fmt.Sprintf("rounds: %d", rounds)
		for _, other := range []string{"onpath", mostoShortest, mostoMinimax, mostoTree} {
			if other != "onpath" {
				r.gain(kase, other, gains[other])
			}
			r.sample(kase, other, metricRelays, "relays", 0, relays[other]/pairs)
		}
	}
}

// tree is a spanning tree of shortest legs: its paths have the shortest longest leg.
type tree struct {
	d    *paths.Distances
	legs [][]int // by node
}

func spanningTree(d *paths.Distances) *tree {
	t := &tree{d, make([][]int, d.Nodes())}
	part := make([]int, d.Nodes())
	type leg struct{ a, b int }
	var legs []leg
	for a := range part {
		part[a] = a
		for b := range a {
			legs = append(legs, leg{a, b})
		}
	}
	slices.SortStableFunc(legs, func(x, y leg) int { return cmp.Compare(d.RTT(x.a, x.b), d.RTT(y.a, y.b)) })
	for _, l := range legs {
		if from, to := part[l.a], part[l.b]; from != to {
			t.legs[l.a], t.legs[l.b] = append(t.legs[l.a], l.b), append(t.legs[l.b], l.a)
			for n, p := range part {
				if p == from {
					part[n] = to
				}
			}
		}
	}
	return t
}

// paths are those from a node to each.
func (t *tree) paths(from int) []paths.Path {
	list := make([]paths.Path, len(t.legs))
	list[from].Nodes = []int{from}
	for next := []int{from}; len(next) > 0; next = next[1:] {
		at := next[0]
		for _, to := range t.legs[at] {
			if list[to].Nodes == nil {
				rtt := t.d.RTT(at, to)
				list[to] = paths.Path{Nodes: append(slices.Clone(list[at].Nodes), to), Sum: list[at].Sum + rtt, Max: max(list[at].Max, rtt)}
				next = append(next, to)
			}
		}
	}
	return list
}

func (r *Run) gain(kase, other string, gains []float64) {
	slices.Sort(gains)
	first, _ := slices.BinarySearch(gains, 0.001) // what is less is rounding
	r.sample(kase, other, metricGain, "ratio", 0, float64(len(gains)-first)/float64(len(gains)))
	r.sample(kase, other, metric90, "ratio", 0, gains[len(gains)*9/10])
	r.sample(kase, other, metric99, "ratio", 0, gains[len(gains)*99/100])
}

// minimaxPath is the path with the smallest longest leg; among those the shortest.
func minimaxPath(f *paths.Front, i, j int) paths.Path {
	at := 0
	_, least, _ := f.Sizes(i, j, 0)
	for o := 1; o < f.Options(i, j); o++ {
		if _, longest, _ := f.Sizes(i, j, o); longest > least {
			break
		}
		at = o
	}
	return f.Path(i, j, at)
}
