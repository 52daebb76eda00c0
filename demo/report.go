package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// Report is everything the demonstration found; --json writes it.
type Report struct {
	Without   Phase         `json:"without"`
	With      Phase         `json:"with"`
	Functions Functions     `json:"functions"`
	Trace     *onpath.Trace `json:"trace"`
	// ApplyToSteered is the time from `onpath apply` to the chain being active:
	// images pushed and fetched, containers started, rules in place.
	ApplyToSteered time.Duration `json:"applyToSteered"`
	TrafficAfter   time.Duration `json:"trafficAfter"` // from the start of the program to the first request
	Checks         `json:"checks"`
}

// check fills in Checks.
func (r *Report) check() {
	check := r.Checks.add
	w, f := r.With, r.Functions
	check(w.OriginBytes*2 < r.Without.OriginBytes, "the cache spares the origin", "it served %s instead of %s", bytesText(w.OriginBytes), bytesText(r.Without.OriginBytes))
	check(f.CacheHits > 0, "squid answers from its cache", "%d hits, %d misses in its log", f.CacheHits, f.CacheMisses)
	check(w.Again.Rate() > r.Without.Again.Rate(), "clients get more than the far link gives", "%s instead of %s", rateText(w.Again.Rate()), rateText(r.Without.Again.Rate()))
	check(f.ShaperDelayed > 0 && w.Again.Rate() < shaperLimit*1.1, "the limiter holds its rate", "%s of %s, %d times over the limit", rateText(w.Again.Rate()), rateText(shaperLimit), f.ShaperDelayed)
	check(r.Without.BlockedPort.Open && !w.BlockedPort.Open, "the firewall blocks a port", "%s was open and is closed", blockedPort)
	check(r.Without.BlockedHost.Open && !w.BlockedHost.Open, "the firewall blocks a host", "%s was open and is closed", blockedHost)
	check(f.FirewallDropped > 0, "nftables counts what it drops", "%d packets", f.FirewallDropped)
	check(len(f.Alerts) > 0, "Suricata raises an alert", "%d in fast.log", len(f.Alerts))
	slices.Sort(w.Clients)
	check(slices.Equal(w.Clients, []string{"10.1.0.11", "10.1.0.12"}), "the origin sees the clients' own addresses", "%s", strings.Join(w.Clients, ", "))
	forward, reverse := inlineElements(r.Trace, true), inlineElements(r.Trace, false)
	slices.Reverse(reverse)
	check(r.Trace != nil && r.Trace.Live && len(forward) == 3 && slices.Equal(forward, reverse), "both directions cross the same instances", "%s", strings.Join(forward, ", "))
}

// inlineElements are the names of the instances on the way, in order.
func inlineElements(t *onpath.Trace, forward bool) (names []string) {
	if t == nil {
		return nil
	}
	hops := t.Reverse
	if forward {
		hops = t.Forward
	}
	for _, h := range hops {
		if h.Kind == onpath.HopElement && h.Mode != onpath.ModeMirror {
			names = append(names, h.Name)
		}
	}
	return names
}

// Print writes the comparison for people.
func (r *Report) Print(w io.Writer) {
	a, b, f := r.Without, r.With, r.Functions
	line := func(what, without, with string) { fmt.Fprintf(w, "  %-44s %16s %16s\n", what, without, with) }
	fmt.Fprintln(w)
	line("", "without chain", "with chain")
	line("web request, median (objects seen before)", msText(a.Again.Median), msText(b.Again.Median))
	line("web throughput, both clients", rateText(a.Again.Rate()), rateText(b.Again.Rate()))
	line("bytes the origin served", bytesText(a.OriginBytes), bytesText(b.OriginBytes))
	line("TCP handshake to a port that is not cached", msText(a.Handshake), msText(b.Handshake))
	line("port 8081", openText(a.BlockedPort.Open), openText(b.BlockedPort.Open))
	line("host 10.9.0.66", openText(a.BlockedHost.Open), openText(b.BlockedHost.Open))
	line("cache hits (squid)", "-", fmt.Sprint(f.CacheHits))
	line("packets dropped (nftables)", "-", fmt.Sprint(f.FirewallDropped))
	line("packets over the limit (tc)", "-", fmt.Sprint(f.ShaperDelayed))
	line("alerts (Suricata)", "-", fmt.Sprint(len(f.Alerts)))
	fmt.Fprintln(w)
	_ = table.Paragraph(w, "  ", fmt.Sprintf("from apply to a steering chain: %.1f s (images fetched, four containers started)", r.ApplyToSteered.Seconds()))
	fmt.Fprintln(w)
	r.Checks.print(w)
}

func msText(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

func rateText(bits float64) string { return fmt.Sprintf("%.1f Mbit/s", bits/1e6) }

func bytesText(n int64) string { return onpath.Size(n).Rounded() }

func openText(open bool) string {
	if open {
		return "open"
	}
	return "blocked"
}
