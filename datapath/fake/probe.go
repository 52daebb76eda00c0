package fake

import (
	"net/netip"
	"time"

	"github.com/onpath/onpath"
)

var _ onpath.PeerProber = (*Node)(nil)

// ProbePeers implements onpath.PeerProber: whom the network has cut off does not
// answer.
func (n *Node) ProbePeers(from, _ netip.Addr) (onpath.PeerConversation, error) {
	return &conversation{node: n, from: from}, nil
}

// Cut takes a node off the underlay, or puts it back on.
func (w *Network) Cut(node string, off bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut == nil {
		w.cut = map[string]bool{}
	}
	w.cut[node] = off
}

// Unaddress takes the underlay address off a node's machine, or gives it back; the node
// notices with its next Apply.
func (w *Network) Unaddress(node string, off bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.missing == nil {
		w.missing = map[string]bool{}
	}
	w.missing[node] = off
	if n := w.nodes[node]; n != nil && off && w.underlay[n.underlay] == n {
		delete(w.underlay, n.underlay)
	}
}

type conversation struct {
	node    *Node
	from    netip.Addr
	answers []onpath.PeerReply
}

func (c *conversation) Ask(q onpath.PeerQuestion) error {
	w := c.node.net
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(q.Vports) > onpath.MaxAsked {
		return onpath.Errorf(onpath.CodeInvalid, "a question about %d vports; one may name %d", len(q.Vports), onpath.MaxAsked)
	}
	to := w.underlay[q.Peer.Address]
	if to == nil || !to.applied || w.cut[to.name] || w.cut[c.node.name] || to.secrets[c.from] != q.Peer.Secret {
		return nil
	}
	a := onpath.PeerReply{Peer: q.Peer.Address, Number: q.Number, States: map[onpath.VportID]onpath.VportState{}}
	for _, v := range q.Vports {
		a.States[v] = to.stateOf(v)
	}
	c.answers = append(c.answers, a)
	return nil
}

// stateOf is the state of a vport of this node; others are closed.
func (n *Node) stateOf(id onpath.VportID) onpath.VportState {
	if n.edge != nil && n.edge.Vport == id {
		return onpath.VportUp
	}
	if v := n.vports[id]; v != nil && v.Kind == onpath.VportInstance {
		return v.State
	}
	return onpath.VportClosed
}

func (c *conversation) Replies(wait time.Duration) ([]onpath.PeerReply, error) {
	if len(c.answers) == 0 {
		time.Sleep(wait)
	}
	out := c.answers
	c.answers = nil
	return out, nil
}

func (c *conversation) Close() error { return nil }
