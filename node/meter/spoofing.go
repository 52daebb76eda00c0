package meter

import (
	"slices"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// An instance is said to send what it may not if, of what it sent within spoofedSpan, half
// and spoofedLeast packets at least were dropped as spoofed: a few stray packets tell nothing.
const (
	spoofedSpan  = time.Minute
	spoofedLeast = 20
)

// sending is what an instance sent of late.
type sending struct {
	list []sent // within spoofedSpan and the one before, in order of time
	over bool   // most of it is dropped as spoofed
}

// sent is how many packets an instance had sent at a time, and how many of them were
// dropped as spoofed.
type sent struct {
	at           time.Time
	all, spoofed uint64
}

// note takes counts up and reports whether that changed over. An instance that sends
// nothing stays as it was.
func (s *sending) note(n sent) (changed bool) {
	if k := len(s.list); k > 0 && (n.all < s.list[k-1].all || n.spoofed < s.list[k-1].spoofed) {
		s.list = nil // the data path is another
	}
	s.list = append(s.list, n)
	for len(s.list) > 2 && n.at.Sub(s.list[1].at) >= spoofedSpan {
		s.list = slices.Delete(s.list, 0, 1)
	}
	all, spoofed := n.all-s.list[0].all, n.spoofed-s.list[0].spoofed
	most := 2*spoofed >= all
	switch {
	case all == 0:
		return false
	case most && spoofed >= spoofedLeast && !s.over, !most && s.over:
		s.over = !s.over
		return true
	}
	return false
}

// senders are what instances sent of late, by number.
type senders struct {
	mu sync.Mutex
	of map[uint64]*sending
}

// note takes up what the vports of an instance have sent.
func (s *senders) note(p *base.Part, x Instance, c *onpath.Counters) {
	n := sent{at: p.Clock.Now()}
	for _, id := range x.Vports {
		v := c.Vports[id]
		n.all, n.spoofed = n.all+v.In.Packets, n.spoofed+v.Dropped[onpath.DropSpoofed]
	}
	s.mu.Lock()
	own := s.of[x.Number]
	if own == nil {
		own = &sending{}
		s.of[x.Number] = own
	}
	changed := own.note(n)
	over := own.over
	s.mu.Unlock()
	switch {
	case !changed:
		return
	case over:
		p.TellInstance(x.Plan, true, onpath.ReasonSpoofed, "%s", spoofs(x.Plan.Spec.Packets))
	default:
		p.TellInstance(x.Plan, false, "SendsAllowed", "most of what it sends is what its function may send")
	}
	base.Kick(p.ReportDue)
}

// Spoofing says what an instance sends that it may not; "" if most of it is allowed.
func (m *Meters) Spoofing(number uint64, p *onpath.InstancePlan) string {
	m.sends.mu.Lock()
	defer m.sends.mu.Unlock()
	if s := m.sends.of[number]; s != nil && s.over {
		return spoofs(p.Spec.Packets)
	}
	return ""
}

// Forget lets go of what an instance that has gone sent.
func (m *Meters) Forget(number uint64) {
	m.sends.mu.Lock()
	defer m.sends.mu.Unlock()
	delete(m.sends.of, number)
}

// spoofs says that an instance sends what its function may not, and the remedy.
func spoofs(rights onpath.PacketRights) string {
	const what = "most of what it sends is dropped as spoofed: "
	if rights == onpath.PacketsOriginate || rights == onpath.PacketsRewrite {
		return what + "no chain through it selects those packets; what it begins with its own address needs outbound: nat"
	}
	return what + "its function may only pass packets on (packets: keep); write packets: rewrite if it changes addresses or ports, " +
		"packets: originate if it opens connections"
}
