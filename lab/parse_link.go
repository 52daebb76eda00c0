package lab

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"go.yaml.in/yaml/v3"
)

// Bounds of what a link may be asked for.
const (
	maxRate   = 400e9 // bit/s; no machine emulates more
	minRate   = 1e3   // bit/s; a full-size frame then takes 12 s
	maxDelay  = 60 * time.Second
	minMTU    = 68    // RFC 791
	maxMTU    = 65535 // of a veth device
	minMTUv6  = 1280  // RFC 8200
	maxFlight = 256 << 20
	frameSize = 1514 // bytes of a full-size Ethernet frame
)

func (p *parser) links(n *yaml.Node, field string) {
	p.list(n, field, func(n *yaml.Node, field string) {
		l := &Link{MTU: 1500, Offloads: true}
		p.placeOf[l] = n
		before := len(p.errs)
		var back *yaml.Node
		ends := 0
		p.mapping(n, field, append([]entry{
			{"a", func(n *yaml.Node, field string) { p.end(&l.A, n, field); ends++ }},
			{"b", func(n *yaml.Node, field string) { p.end(&l.B, n, field); ends++ }},
			{"mtu", func(n *yaml.Node, field string) { p.mtu(&l.MTU, n, field) }},
			{"offloads", p.boolean(&l.Offloads)},
			{"seed", func(n *yaml.Node, field string) { p.seed(&l.Seed, n, field) }},
			{"back", func(n *yaml.Node, _ string) { back = n }},
		}, p.shapeEntries(&l.There)...)...)
		l.Back = l.There
		if back != nil {
			p.mapping(back, field+".back", p.shapeEntries(&l.Back)...)
		}
		if n.Kind == yaml.MappingNode && ends < 2 {
			p.fail(n, field, "write {a: host:eth0, b: other:eth0}", "a link needs both ends, a and b")
		}
		if len(p.errs) == before { // a value that was not understood is no 0 to compare with
			p.checkShape(n, field, &l.There)
			p.checkShape(n, field, &l.Back)
		}
		p.topology.Links = append(p.topology.Links, l)
	})
}

func (p *parser) shapeEntries(s *Shape) []entry {
	return []entry{
		{"rate", func(n *yaml.Node, field string) {
			if p.text(n, field, &s.Rate) && (s.Rate < minRate || s.Rate > maxRate) {
				p.fail(n, field, "", "%s is out of range, %s to %s", s.Rate, onpath.Rate(minRate), onpath.Rate(maxRate))
			}
		}},
		{"delay", func(n *yaml.Node, field string) { p.delay(&s.Delay, n, field) }},
		{"jitter", func(n *yaml.Node, field string) { p.delay(&s.Jitter, n, field) }},
		{"loss", func(n *yaml.Node, field string) { p.loss(&s.Loss, n, field) }},
		{"queue", func(n *yaml.Node, field string) {
			if p.text(n, field, &s.Queue) && (s.Queue < 2*frameSize || s.Queue > maxFlight) {
				p.fail(n, field, "", "a queue of %s is out of range, %d bytes to %s", s.Queue, 2*frameSize, onpath.Size(maxFlight))
			}
		}},
	}
}

// end reads host:interface, or the name of a host or switch.
func (p *parser) end(e *End, n *yaml.Node, field string) {
	s, ok := p.scalar(n, field)
	if !ok {
		return
	}
	var named bool
	e.Node, e.Interface, named = strings.Cut(s, ":")
	p.checkName(n, field, e.Node)
	switch {
	case !named:
	case e.Interface == "lo":
		p.fail(n, field, "", "lo is on no link")
	case !deviceName.MatchString(e.Interface):
		p.fail(n, field, "write host:eth0", "%s is not an interface's name", quoted(e.Interface))
	}
}

func (p *parser) mtu(to *int, n *yaml.Node, field string) {
	s, ok := p.scalar(n, field)
	if !ok {
		return
	}
	v, err := strconv.Atoi(s)
	if err != nil || v < minMTU || v > maxMTU {
		p.fail(n, field, "", "%s is not an MTU in bytes, %d to %d", quoted(s), minMTU, maxMTU)
		return
	}
	*to = v
}

func (p *parser) seed(to *uint64, n *yaml.Node, field string) {
	s, ok := p.scalar(n, field)
	if !ok {
		return
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		p.fail(n, field, "", "%s is not a whole number", quoted(s))
	}
	*to = v
}

func (p *parser) delay(to *onpath.Duration, n *yaml.Node, field string) {
	if p.text(n, field, to) && time.Duration(*to) > maxDelay {
		p.fail(n, field, "", "%s is longer than %s", *to, maxDelay)
	}
}

// loss reads "0.5%".
func (p *parser) loss(to *float64, n *yaml.Node, field string) {
	s, ok := p.scalar(n, field)
	if !ok {
		return
	}
	number, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !percent || math.IsNaN(v) || v < 0 || v > 100 {
		p.fail(n, field, "write 0.5%", "%s is not a share of frames, 0%% to 100%%", quoted(s))
		return
	}
	*to = v / 100
}

// checkShape fills in the queue and refuses what needs too much memory.
func (p *parser) checkShape(n *yaml.Node, field string, s *Shape) {
	if s.Jitter > s.Delay {
		p.fail(n, field, "make the delay longer or the jitter less", "a jitter of %s is more than the delay of %s", s.Jitter, s.Delay)
	}
	if s.Rate == 0 {
		if s.Queue != 0 {
			p.fail(n, field, "give a rate too", "a queue without a rate never fills")
		}
		return
	}
	if s.Queue == 0 {
		s.Queue = DefaultQueue(s.Rate)
	}
	flight := float64(s.Rate) / 8 * time.Duration(s.Delay+s.Jitter).Seconds()
	if flight+float64(s.Queue) > maxFlight {
		p.fail(n, field, "", "%s for %s keeps %d MB on the way; at most %d MB are possible", s.Rate, s.Delay, int(flight/1e6), maxFlight>>20)
	}
}

// DefaultQueue is the queue of a link that names none: what the rate carries
// in 50 ms, between 128 KiB and 16 MiB.
func DefaultQueue(rate onpath.Rate) onpath.Size {
	return min(max(onpath.Size(rate/8/20), 128<<10), 16<<20)
}

// linkField is the path of the n-th link for error messages.
func linkField(i int) string { return fmt.Sprintf("links[%d]", i) }
