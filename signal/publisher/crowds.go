// Package publisher decides for a publisher's daemon where its module is to be: toward each
// region with a crowd it has a SETUP sent, a PROBE for where the module serves then, further
// SETUPs while the crowd lasts, and a REMOVE when it is over (NetServ §4.1). It is pure: it is
// told who asks and what nodes answer, and says what to send.
package publisher

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath/signal/nslp"
)

// Options say what a crowd is.
type Options struct {
	// Module is the module's name.
	Module string
	// Threshold is how many requests within Window make a crowd.
	Threshold int
	Window    time.Duration
	// Cold is how long no request of a region may come before the module is removed; 0: it is
	// never removed, and a lease that ends is asked for again by the next crowd.
	Cold time.Duration
	// TTL is a lease's time; a third of it after each SETUP the next one is due, with Cold.
	TTL time.Duration
	// Bits4 and Bits6 are the lengths of the prefixes that are regions.
	Bits4, Bits6 int
}

// maxRegions bounds the regions that are known at a time.
const maxRegions = 1 << 16

// Waits between two attempts: for a module that starts, and, growing, for nodes that refuse.
const (
	startWait = 300 * time.Millisecond
	firstWait = 2 * time.Second
	mostWait  = 2 * time.Minute
)

// Step is a request to send toward a client of a region.
type Step struct {
	Region netip.Prefix
	Toward netip.Addr
	Do     nslp.Type // Setup, Probe or Remove
}

// Crowds are the regions from which requests come.
type Crowds struct {
	o       Options
	regions map[netip.Prefix]*region
}

// phase is how far a region is.
type phase int

const (
	quiet   phase = iota // no crowd
	waiting              // the module is wanted there
	served               // it serves, or ran at the last PROBE
	leaving              // it is no longer wanted
)

type region struct {
	toward       netip.Addr
	before, here int // requests in the half window before, and in this one
	half         time.Time
	last         time.Time // request
	phase        phase
	next         nslp.Type // what is due, at due
	due          time.Time
	busy         bool // a step is under way
	wait         time.Duration
	until        time.Time // of the lease, without Cold
	nodes        []string  // that have the module
	at           []netip.AddrPort
}

// New makes one without any region.
func New(o Options) *Crowds { return &Crowds{o: o, regions: map[netip.Prefix]*region{}} }

// Region is the prefix that a client is counted by.
func (c *Crowds) Region(client netip.Addr) netip.Prefix {
	client = client.Unmap()
	bits := c.o.Bits6
	if client.Is4() {
		bits = c.o.Bits4
	}
	p, _ := client.Prefix(bits)
	return p
}

// Request counts a client's request. It gives where the nearest module serves, if one does.
func (c *Crowds) Request(now time.Time, client netip.Addr) (at netip.AddrPort, ok bool) {
	client = client.Unmap()
	p := c.Region(client)
	r := c.regions[p]
	if r == nil {
		if len(c.regions) >= maxRegions {
			c.forget(now)
		}
		if len(c.regions) >= maxRegions {
			return at, false
		}
		r = &region{half: now}
		c.regions[p] = r
	}
	switch half := c.o.Window / 2; {
	case now.Sub(r.half) >= 2*half:
		r.before, r.here, r.half = 0, 0, now
	case now.Sub(r.half) >= half:
		r.before, r.here, r.half = r.here, 0, r.half.Add(half)
	}
	r.here++
	r.last = now
	if r.phase == quiet && r.before+r.here >= c.o.Threshold {
		r.toward, r.phase, r.next, r.due, r.wait = client, waiting, nslp.Setup, now, firstWait
	}
	if r.phase != served {
		return at, false
	}
	i := slices.IndexFunc(r.at, func(a netip.AddrPort) bool { return a.Addr().Is4() == client.Is4() })
	if i < 0 {
		return at, false
	}
	return r.at[i], true
}

// forget drops regions from which nothing comes any more.
func (c *Crowds) forget(now time.Time) {
	for p, r := range c.regions {
		if r.phase == quiet && now.Sub(r.last) >= c.o.Window {
			delete(c.regions, p)
		}
	}
}

// Next are the steps that are due, each once until it is answered.
func (c *Crowds) Next(now time.Time) (out []Step) {
	for p, r := range c.regions {
		if c.o.Cold == 0 && r.phase == served && !now.Before(r.until) {
			*r = region{half: now, last: r.last}
		}
		if r.phase == quiet || r.busy {
			continue
		}
		if c.o.Cold > 0 && r.phase != leaving && now.Sub(r.last) >= c.o.Cold {
			r.phase, r.at, r.next, r.due, r.wait = leaving, nil, nslp.Remove, now, firstWait
		}
		if r.phase == leaving && c.shared(r) {
			c.quieten(r, now) // another crowd is served there: what is only on this way ends with its time
			continue
		}
		if !now.Before(r.due) {
			r.busy = true
			out = append(out, Step{p, r.toward, r.next})
		}
	}
	slices.SortFunc(out, func(a, b Step) int { return a.Toward.Compare(b.Toward) })
	return out
}

// shared reports whether another region's crowd is served by a node of this one's way.
func (c *Crowds) shared(r *region) bool {
	for _, o := range c.regions {
		if o != r && (o.phase == waiting || o.phase == served) &&
			slices.ContainsFunc(o.nodes, func(n string) bool { return slices.Contains(r.nodes, n) }) {
			return true
		}
	}
	return false
}

func (c *Crowds) quieten(r *region, now time.Time) { *r = region{half: now, last: r.last} }

// End are the steps by which nothing is left of what is known to be installed.
func (c *Crowds) End() (out []Step) {
	for p, r := range c.regions {
		if r.phase != quiet && c.o.Cold > 0 {
			out = append(out, Step{p, r.toward, nslp.Remove})
		}
	}
	return out
}

// Reply is told what came of a step: the stack of answers, or that there is none. It gives
// where the region's clients are sent from now on, if that is news.
func (c *Crowds) Reply(now time.Time, s Step, stack []nslp.Entry, err error) (news string) {
	r := c.regions[s.Region]
	if r == nil {
		return ""
	}
	r.busy = false
	if s.Do == nslp.Remove {
		if err != nil && r.wait < mostWait/8 {
			r.due, r.wait = now.Add(r.wait), 2*r.wait
			return ""
		}
		c.quieten(r, now)
		return "nothing is left of it"
	}
	if r.phase == leaving {
		return ""
	}
	nodes, at, ready := c.read(stack)
	if err != nil || len(nodes) == 0 {
		was := r.phase
		if c.o.Cold == 0 { // the next one who asks is another reason to try
			c.quieten(r, now)
			return ""
		}
		r.phase, r.at, r.nodes, r.next, r.due = waiting, nil, nil, nslp.Setup, now.Add(r.wait)
		r.wait = min(2*r.wait, mostWait)
		if was == served {
			return "nobody serves there any more"
		}
		return ""
	}
	r.nodes = nodes
	if s.Do == nslp.Setup {
		r.until = now.Add(c.o.TTL)
	}
	if c.o.Cold == 0 { // a module that serves nobody by itself
		r.phase, r.due = served, r.until
		return "it is on the way"
	}
	if s.Do == nslp.Setup || !ready {
		r.next, r.due = nslp.Probe, now
		if !ready && s.Do == nslp.Probe {
			r.due = now.Add(startWait)
		}
		return ""
	}
	changed := r.phase != served || !slices.Equal(r.at, at)
	r.phase, r.at, r.wait = served, at, firstWait
	r.next, r.due = nslp.Setup, r.until.Add(-2*c.o.TTL/3)
	if !changed {
		return ""
	}
	return "its clients are sent to " + at[0].String()
}

// read finds in a stack the nodes that have the module, and where the one that is nearest to
// the client serves.
func (c *Crowds) read(stack []nslp.Entry) (nodes []string, at []netip.AddrPort, ready bool) {
	for _, e := range stack {
		if e.State != nslp.Installed && e.State != nslp.Prolonged && e.State != nslp.Present {
			continue
		}
		i := slices.IndexFunc(e.Modules, func(m string) bool { return strings.HasPrefix(m, c.o.Module+" ") })
		if i < 0 {
			continue
		}
		nodes = append(nodes, e.Node)
		var here []netip.AddrPort
		for _, s := range e.Servers {
			f := strings.Fields(s)
			if len(f) != 3 || f[0] != c.o.Module || f[1] != "tcp" {
				continue
			}
			if a, err := netip.ParseAddrPort(f[2]); err == nil {
				here = append(here, a)
			}
		}
		if f := strings.Fields(e.Modules[i]); len(here) > 0 && len(f) > 1 && f[1] == "ready" {
			at, ready = here, true
		}
	}
	return nodes, at, ready
}
