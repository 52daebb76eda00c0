package fake

import (
	"time"

	"github.com/onpath/onpath"
)

// rateLimit is how fast a tenant may begin flows.
type rateLimit struct {
	most    int       // in a second; 0: no limit
	due     time.Time // when the next one may begin
	spare   int       // flows that may begin anew in any case: a configuration forgot them
	refused uint64    // packets
}

// begin reports whether a flow may begin now; then it has. What was not begun in time
// is not made up for, but for a tenth of a second's.
func (p *rateLimit) begin(now time.Time) bool {
	if p.most == 0 {
		return true
	}
	interval := time.Second / time.Duration(p.most)
	burst := time.Duration(max(1, p.most/10)-1) * interval
	if p.due.Sub(now) > burst {
		spared := p.spare > 0
		p.spare -= min(p.spare, 1)
		return spared
	}
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(interval)
	return true
}

// mayBegin asks for a flow that the packet would begin. One whose entry led nowhere
// goes on.
func (n *Node) mayBegin(w *work, tenant string) bool {
	s := n.share(tenant)
	if w.anew || s.begin(n.now()) {
		return true
	}
	s.refused += n.pieces()
	return false
}

// mayBeginAll asks the tenants of the chains that a walk has begun, but for one that
// was asked, or need not be.
func (n *Node) mayBeginAll(w *work, begun []onpath.PathID, asked string) bool {
	for _, id := range begun {
		tenant := n.tenantOf(id)
		if tenant == asked {
			continue
		}
		if !n.mayBegin(w, tenant) {
			return false
		}
		asked = tenant
	}
	return true
}
