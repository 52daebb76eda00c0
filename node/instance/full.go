package instance

import (
	"context"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// Events about relays that are full.
const (
	ReasonRelayFull = "RelayFull"
	ReasonRelayOpen = "RelayOpen"
)

const passBy = ": new ones pass by, not accelerated; add nodes to the accelerator, or "

var fullWords = map[onpath.RelayFullness]string{
	onpath.RelayFullConnections: "the node's relays hold nearly as many connections as they may" + passBy +
		"raise the node's limit of open files or its memory",
	onpath.RelayFullTenant: "it holds nearly as many connections as one tenant may have" + passBy +
		"raise the node's limit of open files or its memory",
}

// askFullAgain is the wait after a relay could not say whether it is full.
const askFullAgain = time.Second

// watchFull sends how full a relay is whenever that changes. A process that begins has room.
func (in watcher) watchFull(ctx context.Context, p onpath.Process) (<-chan onpath.RelayFullness, func()) {
	in.st.mu.Lock()
	in.st.fact.Full = ""
	in.st.mu.Unlock()
	r, ok := p.(onpath.Relaying)
	if !ok {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	changes, done := make(chan onpath.RelayFullness), make(chan struct{})
	go func() {
		defer close(done)
		var was onpath.RelayFullness
		for ctx.Err() == nil && !ended(p) {
			is, err := r.AwaitFull(ctx, was)
			if err != nil {
				_ = in.s.part.Clock.Sleep(ctx, askFullAgain)
				continue
			}
			if is == was {
				continue
			}
			select {
			case changes <- is:
				was = is
			case <-ctx.Done():
			}
		}
	}()
	return changes, func() {
		cancel()
		<-done
	}
}

// fill has new flows pass a full instance by, or come to it again.
func (in watcher) fill(full onpath.RelayFullness) {
	in.st.mu.Lock()
	was := in.st.fact.Full
	in.st.fact.Full = full
	in.st.mu.Unlock()
	in.s.rounds.Kick(false)
	base.Kick(in.s.part.ReportDue)
	switch {
	case full != "" && was == "":
		in.s.part.TellInstance(in.current(), true, ReasonRelayFull, "%s", fullWords[full])
	case full == "" && was != "":
		in.s.part.TellInstance(in.current(), false, ReasonRelayOpen, "it has room again, and takes new connections")
	}
}
