package distribute

import "math"

// Problem is a transportation problem: Supply[i] goes from each i, Demand[j] to each j,
// and a unit from i to j costs Cost[i][j] ≥ 0. Supplies and demands have equal sums.
type Problem struct {
	Supply, Demand []int64
	Cost           [][]int64
}

// Solution is an optimal one, with the prices that prove it: U[i]+V[j] ≤ Cost[i][j], and
// ΣSupply·U + ΣDemand·V = Cost. No solution can cost less than any such prices say.
type Solution struct {
	Flow [][]int64
	Cost int64
	U, V []int64
}

// solver finds shortest paths from what is left of the supplies to what is left of the
// demands, and fills all of them at once (the primal-dual method for minimum-cost flows).
// With costs of 0 and 1 few lengths of paths exist, so few rounds are needed.
type solver struct {
	Problem
	Solution
	left, lack   []int64 // of supplies and demands
	distU, distV []int64
	levelU       []int
	levelV       []int
	nextU, nextV []int // where the depth-first search goes on
	queue        []int
}

const far = math.MaxInt64 / 4

// Solve returns an optimal solution in integers.
func (p Problem) Solve() *Solution {
	n, m := len(p.Supply), len(p.Demand)
	s := &solver{
		Problem: p, Solution: Solution{Flow: make([][]int64, n), U: make([]int64, n), V: make([]int64, m)},
		left: append([]int64(nil), p.Supply...), lack: append([]int64(nil), p.Demand...),
		distU: make([]int64, n), distV: make([]int64, m), levelU: make([]int, n), levelV: make([]int, m),
		nextU: make([]int, n), nextV: make([]int, m),
	}
	for i := range s.Flow {
		s.Flow[i] = make([]int64, m)
	}
	for s.nearer() {
		for s.levels() {
			s.fill()
		}
	}
	for i, row := range s.Flow {
		for j, f := range row {
			s.Solution.Cost += f * p.Cost[i][j]
		}
	}
	return &s.Solution
}

// nearer changes the prices so that the shortest paths from supplies to demands cost
// nothing more; false: nothing is left to send. (Dijkstra's algorithm in a dense graph.)
func (s *solver) nearer() bool {
	for i, l := range s.left {
		s.distU[i] = far
		if l > 0 {
			s.distU[i] = 0
		}
	}
	for j := range s.distV {
		s.distV[j] = far
	}
	doneU, doneV := make([]bool, len(s.left)), make([]bool, len(s.lack))
	for {
		i, j := nearest(s.distU, doneU), nearest(s.distV, doneV)
		switch {
		case i < 0 && j < 0:
			return false
		case j < 0 || i >= 0 && s.distU[i] <= s.distV[j]:
			doneU[i] = true
			for k, c := range s.Problem.Cost[i] {
				s.distV[k] = min(s.distV[k], s.distU[i]+c-s.U[i]-s.V[k])
			}
		case s.lack[j] > 0:
			s.reprice(s.distV[j])
			return true
		default:
			doneV[j] = true
			for k := range s.Flow {
				if s.Flow[k][j] > 0 {
					s.distU[k] = min(s.distU[k], s.distV[j])
				}
			}
		}
	}
}

func nearest(dist []int64, done []bool) int {
	best := -1
	for i, d := range dist {
		if d < far && !done[i] && (best < 0 || d < dist[best]) {
			best = i
		}
	}
	return best
}

func (s *solver) reprice(d int64) {
	for i := range s.U {
		s.U[i] += d - min(s.distU[i], d)
	}
	for j := range s.V {
		s.V[j] -= d - min(s.distV[j], d)
	}
}

func (s *solver) tight(i, j int) bool { return s.Problem.Cost[i][j] == s.U[i]+s.V[j] }

// levels numbers what is reached from the rest of the supplies without extra cost, by
// the number of steps; false: no demand is. Demands are numbered from 0 in the queue,
// supplies from -1 down.
func (s *solver) levels() (found bool) {
	s.queue = s.queue[:0]
	for i, l := range s.left {
		s.levelU[i], s.nextU[i] = 0, 0
		if l > 0 {
			s.levelU[i] = 1
			s.queue = append(s.queue, -1-i)
		}
	}
	for j := range s.levelV {
		s.levelV[j], s.nextV[j] = 0, 0
	}
	for h := 0; h < len(s.queue); h++ {
		if x := s.queue[h]; x < 0 {
			i := -1 - x
			for j := range s.levelV {
				if s.levelV[j] == 0 && s.tight(i, j) {
					s.levelV[j] = s.levelU[i] + 1
					s.queue = append(s.queue, j)
				}
			}
		} else {
			found = found || s.lack[x] > 0
			for i := range s.levelU {
				if s.levelU[i] == 0 && s.Flow[i][x] > 0 {
					s.levelU[i] = s.levelV[x] + 1
					s.queue = append(s.queue, -1-i)
				}
			}
		}
	}
	return found
}

// fill sends as much as the levels let through.
func (s *solver) fill() {
	for i := range s.left {
		for s.left[i] > 0 {
			sent := s.sendFrom(i, s.left[i])
			if sent == 0 {
				break
			}
			s.left[i] -= sent
		}
	}
}

func (s *solver) sendFrom(i int, amount int64) int64 {
	for ; s.nextU[i] < len(s.lack); s.nextU[i]++ {
		j := s.nextU[i]
		if s.levelV[j] != s.levelU[i]+1 || !s.tight(i, j) {
			continue
		}
		if sent := s.sendTo(j, amount); sent > 0 {
			s.Flow[i][j] += sent
			return sent
		}
	}
	return 0
}

func (s *solver) sendTo(j int, amount int64) int64 {
	if sent := min(amount, s.lack[j]); sent > 0 {
		s.lack[j] -= sent
		return sent
	}
	for ; s.nextV[j] < len(s.left); s.nextV[j]++ {
		i := s.nextV[j]
		if s.levelU[i] != s.levelV[j]+1 || s.Flow[i][j] == 0 {
			continue
		}
		if sent := s.sendFrom(i, min(amount, s.Flow[i][j])); sent > 0 {
			s.Flow[i][j] -= sent
			return sent
		}
	}
	return 0
}
