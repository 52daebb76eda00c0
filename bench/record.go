package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// Results are what a run of the suite found, as `onpath bench --json` writes it.
type Results struct {
	Machine Machine  `json:"machine"`
	Records []Record `json:"records"`
}

// Record is one figure of one contestant.
type Record struct {
	Benchmark  string  `json:"benchmark"`
	Case       string  `json:"case"`
	Contestant string  `json:"contestant"`
	Metric     string  `json:"metric"`
	Unit       string  `json:"unit"`
	Value      float64 `json:"value"` // median over the rounds
	Low        float64 `json:"low"`   // lower quartile
	High       float64 `json:"high"`  // upper quartile
	// Ratio is this contestant's value over another's: the median of the rounds'
	// ratios. Keys are names of contestants.
	Ratio map[string]float64 `json:"ratio,omitempty"`
}

// The metrics that several benchmarks share. Times are in the unit beside them.
const (
	MetricRate       = "rate"       // loss-free, packets/s
	MetricCPU        = "cpu"        // ns/packet or ns/byte, on the CPU that forwards
	MetricThroughput = "throughput" // bit/s
	MetricRoundTrip  = "round trip" // µs
	MetricBlackout   = "blackout"   // ms
	MetricLost       = "lost"       // packets or connections
)

// Find gives the record of a benchmark's case, contestant and metric.
func (r *Results) Find(benchmark, kase, contestant, metric string) (Record, bool) {
	for _, rec := range r.Records {
		if rec.Benchmark == benchmark && rec.Case == kase && rec.Contestant == contestant && rec.Metric == metric {
			return rec, true
		}
	}
	return Record{}, false
}

// WriteFile writes the results as JSON.
func (r *Results) WriteFile(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	enc := json.NewEncoder(f)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		f.Close()
		return fmt.Errorf("write results to %s: %w", name, err)
	}
	return f.Close()
}

// Read reads results that WriteFile wrote.
func Read(in io.Reader) (*Results, error) {
	var r Results
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	return &r, nil
}
