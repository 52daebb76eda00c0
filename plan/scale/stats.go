package scale

import (
	"math"
	"time"

	"github.com/onpath/onpath"
)

// Sample is a value that the application reported.
type Sample struct {
	At    time.Time
	Value float64
}

// Series are the last values of a chain, oldest first.
type Series struct {
	list  []Sample
	since time.Time // the newest value has been the same since then
	same  int       // in so many reports
}

// maxSamples bounds a series; with a value a second it is more than an hour.
const maxSamples = 4096

// Add takes up a value. One that is older than the last is late, and left out.
func (s *Series) Add(x Sample) {
	if n := len(s.list); n > 0 && !x.At.After(s.list[n-1].At) {
		return
	}
	if n := len(s.list); n == 0 || s.list[n-1].Value != x.Value {
		s.since, s.same = x.At, 0
	}
	s.same++
	s.list = append(s.list, x)
	if len(s.list) > maxSamples {
		s.list = append(s.list[:0], s.list[maxSamples/4:]...)
	}
}

// Last is the newest value.
func (s *Series) Last() (x Sample, ok bool) {
	if len(s.list) == 0 {
		return x, false
	}
	return s.list[len(s.list)-1], true
}

// Largest is the largest value after from, whatever its sign, of how many.
func (s *Series) Largest(from time.Time) (most float64, n int) {
	for i := len(s.list) - 1; i >= 0 && s.list[i].At.After(from); i-- {
		most, n = max(most, math.Abs(s.list[i].Value)), n+1
	}
	return most, n
}

// extremes are the smallest and the largest value after from, of how many.
func (s *Series) extremes(from time.Time) (least, most float64, n int) {
	for i := len(s.list) - 1; i >= 0 && s.list[i].At.After(from); i-- {
		x := s.list[i].Value
		if n == 0 {
			least, most = x, x
		}
		least, most, n = min(least, x), max(most, x), n+1
	}
	return least, most, n
}

// still is since when the newest value has been the same, in how many reports.
func (s *Series) still() (since time.Time, value float64, n int) {
	if n = len(s.list); n == 0 {
		return since, 0, 0
	}
	return s.since, s.list[n-1].Value, min(s.same, n)
}

// Between is what the values say that came after from, up to to.
func (s *Series) Between(from, to time.Time) (m onpath.MetricStats) {
	var sum, squares, lagged float64
	var last float64
	shift := 0.0
	for i := len(s.list) - 1; i >= 0 && s.list[i].At.After(from); i-- {
		x := s.list[i]
		if x.At.After(to) {
			continue
		}
		if m.N == 0 {
			shift = x.Value // keeps the squares small
		}
		d := x.Value - shift
		if m.N > 0 {
			lagged += d * last
		}
		sum, squares, last = sum+d, squares+d*d, d
		m.N++
	}
	if m.N == 0 {
		return m
	}
	n := float64(m.N)
	mean := sum / n
	m.Mean = shift + mean
	if m.N < 3 {
		return m
	}
	m.Var = max((squares-n*mean*mean)/(n-1), 0)
	if m.Var > 0 {
		least := 0.0
		if m.N >= 10 { // of few it cannot be told that they swing round their mean
			least = -0.6
		}
		m.Rho = min(max((lagged/(n-1)-mean*mean)/m.Var, least), 0.95)
	}
	return m
}

// pooled are two sets of values of the same numbers of instances, together.
func pooled(a, b onpath.MetricStats) onpath.MetricStats {
	if a.N == 0 {
		return b
	}
	if b.N == 0 {
		return a
	}
	n, m := float64(a.N), float64(b.N)
	apart := a.Mean - b.Mean
	return onpath.MetricStats{
		N: a.N + b.N, Mean: (n*a.Mean + m*b.Mean) / (n + m), Rho: (n*a.Rho + m*b.Rho) / (n + m),
		Var: ((n-1)*a.Var + (m-1)*b.Var + apart*apart*n*m/(n+m)) / (n + m - 1),
	}
}

// independent is how many independent values the values are worth: neighbours that go up
// and down together say less, and those that swing round their mean say more.
func independent(m onpath.MetricStats) float64 {
	return max(float64(m.N)*(1-m.Rho)/(1+m.Rho), 1)
}

// gain compares two sets of values: how much better the second is, as a part of the
// first, and how sure that is.
type gain struct {
	change float64 // 0.05: 5 % better
	se     float64 // its standard error
	df     float64 // degrees of freedom (Welch and Satterthwaite)
}

func compare(before, after onpath.MetricStats, o onpath.Objective) gain {
	scale := math.Max(math.Abs(before.Mean), 1e-9*math.Max(math.Abs(after.Mean), 1))
	g := gain{change: (after.Mean - before.Mean) / scale}
	if o == onpath.ObjectiveMin {
		g.change = -g.change
	}
	rho := max(before.Rho, after.Rho) // of few values it cannot be told
	before.Rho, after.Rho = rho, rho
	a, b := before.Var/independent(before), after.Var/independent(after)
	g.se = math.Sqrt(a+b) / scale
	if a+b > 0 {
		g.df = (a + b) * (a + b) / (a*a/max(independent(before)-1, 1) + b*b/max(independent(after)-1, 1))
	}
	return g
}

// below is the chance of seeing what was seen though the true change is x or less.
func (g gain) below(x float64) float64 { return 1 - studentCDF((g.change-x)/g.se, g.df) }

// above is the same for x or more.
func (g gain) above(x float64) float64 { return studentCDF((g.change-x)/g.se, g.df) }

// studentCDF is the distribution of Student's t with df degrees of freedom; without any
// spread (t infinite, or not a number at equality) it is 0, 1/2 or 1.
func studentCDF(t, df float64) float64 {
	switch {
	case math.IsNaN(t):
		return 0.5
	case math.IsInf(t, 1):
		return 1
	case math.IsInf(t, -1):
		return 0
	}
	tail := incompleteBeta(df/(df+t*t), df/2, 0.5) / 2
	if t > 0 {
		return 1 - tail
	}
	return tail
}

// incompleteBeta is the regularised incomplete beta function I_x(a, b), by its continued
// fraction (Lentz's method).
func incompleteBeta(x, a, b float64) float64 {
	switch {
	case x <= 0:
		return 0
	case x >= 1:
		return 1
	case x > (a+1)/(a+b+2):
		return 1 - incompleteBeta(1-x, b, a)
	}
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab-la-lb+a*math.Log(x)+b*math.Log(1-x)) / a
	const tiny = 1e-300
	f, c, d := 1.0, 1.0, 0.0
	for i := range 300 {
		m := float64(i / 2)
		var num float64
		switch {
		case i == 0:
			num = 1
		case i%2 == 0:
			num = m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		default:
			num = -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		}
		d = 1 / nonZero(1+num*d, tiny)
		c = nonZero(1+num/c, tiny)
		f *= c * d
		if math.Abs(1-c*d) < 1e-10 {
			break
		}
	}
	return front * (f - 1)
}

func nonZero(x, tiny float64) float64 {
	if math.Abs(x) < tiny {
		return tiny
	}
	return x
}
