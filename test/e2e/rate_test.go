package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

const rateChain = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: rate}
spec:
  container: {image: host, command: [sleep, infinity], attach: routed, addresses: none}
  state: none
  packets: keep
  resources: {network: %dMbit}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: rate}
spec: {function: rate, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: rate}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  select: [{destinationPorts: ["5203"]}]
  through: [{deployment: rate}]
`

// rateSeconds is how long each rate is in force, of which the first second is not judged:
// what waited at the rate before is still to come.
const rateSeconds = 3

// TestRate: one TCP connection through an instance gets the rate that the instance has, also
// when that changes meanwhile. With ONPATH_SOAK also the highest rate, and a UDP stream at
// 80 % of the smallest rate, which loses nothing.
func TestRate(t *testing.T) {
	ctx := need(t, time.Minute)
	file := filepath.Join(t.TempDir(), "rate.yaml")
	set := func(mbit int) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, rateChain, mbit), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := testbed.Apply(ctx, file); err != nil {
			t.Fatal(err)
		}
	}
	// during runs a stream while the rates follow each other.
	during := func(rates []int, stream func()) {
		t.Helper()
		set(rates[0])
		done := make(chan bool)
		begin := time.Now()
		go func() { defer close(done); stream() }()
		for i := 1; i < len(rates); i++ {
			time.Sleep(time.Until(begin.Add(time.Duration(i*rateSeconds) * time.Second)))
			set(rates[i])
		}
		<-done
	}
	if err := testbed.Start("iperf3-rate", "origin", "iperf3", "-s", "-J", "-p", "5203"); err != nil {
		t.Fatal(err)
	}
	rates := []int{200, 50}
	soak := os.Getenv("ONPATH_SOAK") != ""
	if soak {
		rates = []int{200, 500, 50}
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, rateChain, rates[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	applyFile(ctx, t, file)
	active(ctx, t, "rate")
	var r iperf
	during(rates, func() { r = rateStream(ctx, t, len(rates)) })
	if len(r.Server.Intervals) < rateSeconds*len(rates) {
		t.Fatalf("the stream ended after %d seconds: %s", len(r.Server.Intervals), r.Error)
	}
	for i, want := range rates {
		sum, n := 0.0, 0
		for _, s := range r.Server.Intervals[i*rateSeconds+1 : (i+1)*rateSeconds] {
			sum, n = sum+s.Sum.Rate/1e6, n+1
		}
		ratio := sum / float64(n) / float64(want)
		t.Logf("limited to %d Mbit/s, TCP got %.3f of it", want, ratio)
		if ratio < 0.90 || ratio > 1.02 {
			t.Errorf("limited to %d Mbit/s, TCP got %.3f of it, want 0.90 to 1.02", want, ratio)
		}
	}
	if !soak {
		return
	}
	rates = []int{50, 200, 50}
	during(rates, func() { r = rateStream(ctx, t, len(rates), "-u", "-b", "40M", "-l", "1400") })
	t.Logf("of %d UDP packets %d were lost", r.End.Sum.Packets, r.End.Sum.Lost)
	if r.End.Sum.Packets == 0 || r.End.Sum.Lost != 0 {
		t.Errorf("of %d UDP packets at 80 %% of the rate %d were lost: %s", r.End.Sum.Packets, r.End.Sum.Lost, r.Error)
	}
}

// iperf is what iperf3 says of a stream; Server as the receiver counted.
type iperf struct {
	Error string `json:"error"`
	End   struct {
		Sum struct {
			Packets int `json:"packets"`
			Lost    int `json:"lost_packets"`
		} `json:"sum"`
	} `json:"end"`
	Server struct {
		Intervals []struct {
			Sum struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum"`
		} `json:"intervals"`
	} `json:"server_output_json"`
}

// rateStream is one stream, as long as so many rates are in force.
func rateStream(ctx context.Context, t *testing.T, rates int, args ...string) (r iperf) {
	all := append([]string{"iperf3", "-c", "10.9.0.2", "-p", "5203", "-t", fmt.Sprint(rates * rateSeconds), "-J", "--get-server-output"}, args...)
	b, err := testbed.Exec(ctx, "client", all...)
	if jerr := json.Unmarshal(b, &r); err != nil || jerr != nil {
		t.Errorf("iperf3: %v, %v: %.300s", err, jerr, b)
	}
	return r
}
