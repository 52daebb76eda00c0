package onpath

import (
	"net/netip"
	"time"
)

// PeerProber is what a Datapath can do besides, if it can: ask the data paths of
// peers, on the way that tunnelled packets go, which of their vports take
// packets. Their kernels answer, so an answer says that packets would be taken,
// and a restarting agent is not a dead node.
type PeerProber interface {
	// ProbePeers opens a conversation from the node's underlay address, and from its address
	// inside WireGuard if it has one. Independent of Apply; the caller closes it.
	ProbePeers(from, inside netip.Addr) (PeerConversation, error)
}

// PeerConversation asks peers and hears their answers. One goroutine uses it.
type PeerConversation interface {
	// Ask sends a question and does not wait. That a peer cannot be reached is
	// no error: there will be no answer.
	Ask(PeerQuestion) error
	// Replies gives what has come in since the last call; if nothing has, it
	// waits at most the time given.
	Replies(wait time.Duration) ([]PeerReply, error)
	Close() error
}

// MaxAsked is how many vports one question may name.
const MaxAsked = 32

// PeerQuestion asks one peer about some of its vports.
type PeerQuestion struct {
	Peer   Peer
	Number uint64 // comes back in the answer
	Vports []VportID
}

// PeerReply is what a peer's data path says.
type PeerReply struct {
	Peer   netip.Addr
	Number uint64
	// States of the vports asked about; one that the peer does not have is closed.
	States map[VportID]VportState
}
