package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const circuitsChain = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: circuits}
spec:
  state: none
  ebpf:
    object: ratelimit
    config: {burst: 20ms}
    files: {circuits: {fromFile: circuits.txt}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: circuits}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{function: circuits, drain: 1s}]
`

// TestCircuits: a list of 3,000 circuits is in force soon, and a changed row costs others
// nothing; a circuit gets its rate each way, IPv4 and IPv6 together.
func TestCircuits(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set")
	}
	ctx := need(t, 2*time.Minute)
	dir := t.TempDir()
	file := filepath.Join(dir, "circuits.yaml")
	if err := os.WriteFile(file, []byte(circuitsChain), 0o644); err != nil {
		t.Fatal(err)
	}
	write := func(other, down, up int) {
		t.Helper()
		var list strings.Builder
		for i := range 3000 {
			fmt.Fprintf(&list, "100.64.%d.%d 100.65.%d.%d 2001:db8:%x::/56 %dMbit 20Mbit\n", i/250, i%250+1, i/250, i%250+1, i+1, other)
		}
		fmt.Fprintf(&list, "10.1.0.2 10.1.0.3 fd01::/56 %dMbit %dMbit\n", down, up)
		if err := os.WriteFile(filepath.Join(dir, "circuits.txt"), []byte(list.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put := func() time.Duration {
		t.Helper()
		begin := time.Now()
		if out, err := testbed.Onpath(ctx, "apply", "-f", file, "--wait"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return time.Since(begin)
	}
	write(100, 20, 10)
	applyFile(ctx, t, file)
	active(ctx, t, "circuits")
	write(101, 20, 10)
	t.Logf("another list of 3,000 circuits was in force after %s", put().Round(time.Millisecond))
	if err := testbed.Start("iperf3-circuits", "origin", "iperf3", "-s", "-J", "-p", "5203"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		to   string
		mbit float64
		args []string
	}{{"up", 10, nil}, {"down", 20, []string{"-R"}}} {
		r := rateStream(ctx, t, 2, append([]string{"-u", "-b", fmt.Sprintf("%.0fM", c.mbit*1.2), "-l", "1400"}, c.args...)...)
		got := float64(r.End.Sum.Packets-r.End.Sum.Lost) * 1428 * 8 / (2 * rateSeconds) / 1e6 / c.mbit
		t.Logf("%s: %.3f of %.0f Mbit/s; of %d packets %d were lost", c.to, got, c.mbit, r.End.Sum.Packets, r.End.Sum.Lost)
		if got < 0.95 || got > 1.05 {
			t.Errorf("%s: %.3f of %.0f Mbit/s came through, must be within 5 %%", c.to, got, c.mbit)
		}
	}
	s := startStream(t, "10.9.0.2", udpEcho(t, "10.9.0.2"), 200)
	for other := 200; other < 205; other++ {
		write(100, 20, 10)
		list, err := os.ReadFile(filepath.Join(dir, "circuits.txt"))
		if err != nil {
			t.Fatal(err)
		}
		row := fmt.Sprintf("100.64.3.8 100.65.3.8 2001:db8:%x::/56 ", 3*250+8)
		changed := strings.Replace(string(list), row+"100Mbit", row+fmt.Sprint(other)+"Mbit", 1)
		if changed == string(list) {
			t.Fatal("the row is not there")
		}
		if err := os.WriteFile(filepath.Join(dir, "circuits.txt"), []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Logf("a changed row was in force after %s", put().Round(time.Millisecond))
	}
	if sent, lost, _ := s.end(); sent < 100 || lost > 0 {
		t.Errorf("while one row changed, %d of %d questions of another circuit were lost", lost, sent)
	}
}
