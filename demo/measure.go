package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Phase is what one run of the traffic showed, without or with the chain.
type Phase struct {
	Web         LoadResult    `json:"web"`         // small objects, each fetched several times, both clients
	Again       LoadResult    `json:"again"`       // the same objects once more
	Handshake   time.Duration `json:"handshake"`   // TCP to a port that is not cached
	BlockedPort ProbeResult   `json:"blockedPort"` // 8081
	BlockedHost ProbeResult   `json:"blockedHost"` // 10.9.0.66
	OriginBytes int64         `json:"originBytes"` // that the origin served for Web and Again
	Clients     []string      `json:"clients"`     // addresses that the origin saw
}

// Functions is what the functions themselves counted.
type Functions struct {
	FirewallDropped int64    `json:"firewallDropped"` // packets, nftables counters
	Alerts          []string `json:"alerts"`          // Suricata's fast.log
	ShaperDelayed   int64    `json:"shaperDelayed"`   // packets over the limit, tc's overlimits
	CacheHits       int64    `json:"cacheHits"`       // squid's access log
	CacheMisses     int64    `json:"cacheMisses"`
}

const (
	originHost  = "origin"
	site        = "http://10.9.0.2"
	blockedPort = "10.9.0.2:8081"
	blockedHost = "10.9.0.66:80"
	plainPort   = "10.9.0.2:9000"
	shaperLimit = 60e6 // bit/s, as in functions.yaml
	objects     = 20
	objectBytes = 100 << 10
)

// phase drives all of the traffic once.
func (d *chainRun) phase(ctx context.Context, what string) (Phase, error) {
	var p Phase
	before, err := d.originStats(ctx)
	if err != nil {
		return p, err
	}
	d.Say("%s: 2 clients fetch %d objects of %d kB, four times over", what, objects, objectBytes>>10)
	spec := LoadSpec{Base: site, Kind: "object", Objects: objects, Bytes: objectBytes, Requests: 2 * objects, Parallel: 4, Timeout: 15 * time.Second}
	if p.Web, err = d.loadBoth(ctx, spec); err != nil {
		return p, err
	}
	if p.Again, err = d.loadBoth(ctx, spec); err != nil {
		return p, err
	}
	after, err := d.originStats(ctx)
	if err != nil {
		return p, err
	}
	p.OriginBytes = after.Bytes - before.Bytes
	for c := range after.Clients {
		p.Clients = append(p.Clients, c)
	}
	d.Say("%s: connections to a plain port, a blocked port and a blocked host; a request for /admin", what)
	var plain ProbeResult
	for _, probe := range []struct {
		to      *ProbeResult
		address string
		count   string
	}{{&plain, plainPort, "11"}, {&p.BlockedPort, blockedPort, "1"}, {&p.BlockedHost, blockedHost, "1"}} {
		if err := d.inHost(ctx, "client1", probe.to, "demo", "probe", probe.address, "--count", probe.count, "--timeout", "1500ms"); err != nil {
			return p, err
		}
	}
	p.Handshake = plain.Median
	// The answer (404) does not matter; that Suricata sees the request does.
	_ = d.inHost(ctx, "client2", &LoadResult{}, "demo", "load", asJSON(LoadSpec{Base: site + "/admin", Kind: "object", Objects: 1, Bytes: 1, Requests: 1, Parallel: 1, Timeout: 5 * time.Second}))
	return p, nil
}

// loadBoth runs the load on both clients at once and adds up.
func (d *chainRun) loadBoth(ctx context.Context, spec LoadSpec) (LoadResult, error) {
	type answer struct {
		res LoadResult
		err error
	}
	answers := make(chan answer, 2)
	for _, host := range []string{"client1", "client2"} {
		go func() {
			var a answer
			a.err = d.inHost(ctx, host, &a.res, "demo", "load", asJSON(spec))
			answers <- a
		}()
	}
	a, b := <-answers, <-answers
	if a.err != nil || b.err != nil {
		return LoadResult{}, fmt.Errorf("load: %w", firstOf(a.err, b.err))
	}
	sum := a.res
	sum.Requests += b.res.Requests
	sum.Failed += b.res.Failed
	sum.Wrong += b.res.Wrong
	sum.Bytes += b.res.Bytes
	sum.Hits += b.res.Hits
	sum.Took = max(a.res.Took, b.res.Took)
	sum.Median = (a.res.Median + b.res.Median) / 2
	sum.P95 = max(a.res.P95, b.res.P95)
	if sum.Error == "" {
		sum.Error = b.res.Error
	}
	if sum.Failed+sum.Wrong > 0 {
		return sum, fmt.Errorf("load: %d of %d requests failed, %d had wrong bytes: %s", sum.Failed, sum.Requests, sum.Wrong, sum.Error)
	}
	return sum, nil
}

// inHost runs this program in a lab host and reads the JSON it prints.
func (d *Run) inHost(ctx context.Context, host string, v any, args ...string) error {
	out, err := d.Testbed.Exec(ctx, host, append([]string{d.Testbed.spec.Bin}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal(out, v)
}

func (d *chainRun) originStats(ctx context.Context) (OriginStats, error) {
	var s OriginStats
	err := d.inHost(ctx, originHost, &s, "demo", "stats", "http://127.0.0.1:8888/stats")
	return s, err
}

// functions reads what the functions counted, inside their instances.
func (d *chainRun) functions(ctx context.Context) (f Functions, err error) {
	nft, err := d.inInstance(ctx, "web-firewall", "nft", "list", "counters")
	if err != nil {
		return f, err
	}
	f.FirewallDropped = sumAfter(nft, `(?s)counter blocked-\w+ \{\s*packets (\d+)`)
	alerts, err := d.inInstance(ctx, "web-ids", "cat", "/var/log/suricata/fast.log")
	if err != nil {
		return f, err
	}
	for _, l := range strings.Split(strings.TrimSpace(alerts), "\n") {
		if l != "" {
			f.Alerts = append(f.Alerts, l)
		}
	}
	tc, err := d.inInstance(ctx, "web-shaper", "tc", "-s", "qdisc", "show", "dev", "eth0", "root")
	if err != nil {
		return f, err
	}
	f.ShaperDelayed = sumAfter(tc, `overlimits (\d+)`)
	log, err := d.inInstance(ctx, "web-cache", "cat", "/var/log/squid/access.log")
	if err != nil {
		return f, err
	}
	for _, l := range strings.Split(log, "\n") {
		switch {
		case strings.Contains(l, "_HIT/"):
			f.CacheHits++
		case strings.Contains(l, "_MISS/"):
			f.CacheMisses++
		}
	}
	return f, nil
}

// inInstance runs a command in the one instance of a deployment.
func (d *Run) inInstance(ctx context.Context, deployment string, command ...string) (string, error) {
	name, err := d.Testbed.InstanceOf(ctx, deployment)
	if err != nil {
		return "", err
	}
	out, err := d.Testbed.Onpath(ctx, append([]string{"exec", name, "--"}, command...)...)
	return string(out), err
}

// sumAfter adds up the numbers that the pattern's group finds.
func sumAfter(text, pattern string) (sum int64) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseInt(m[1], 10, 64) // digits by the pattern
		sum += n
	}
	return sum
}

func asJSON(v any) string {
	b, _ := json.Marshal(v) // plain structs
	return string(b)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
