package node

import (
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/measure/trial"
	"github.com/onpath/onpath/node/base"
)

// try takes part in a trial of the network, one at a time.
func try(ctx context.Context, part *base.Part, one *sync.Mutex, p trial.Part, stream io.ReadWriter) error {
	if !one.TryLock() {
		e := onpath.Errorf(onpath.CodeConflict, "node %s takes part in another trial", part.Node)
		e.Remedy = "wait for it: two at once measure each other"
		return e
	}
	defer one.Unlock()
	m, out := trial.Machine{NetNS: part.NetNS}, json.NewEncoder(stream)
	if !p.Receiver {
		t, err := m.Send(ctx, p)
		if err != nil {
			return err
		}
		return out.Encode(t)
	}
	over := make(chan struct{})
	t, err := m.Receive(ctx, p, func(l trial.Ports) error {
		go func() {
			_, _ = io.ReadFull(stream, make([]byte, 1)) // its end says the same
			close(over)
		}()
		return out.Encode(l)
	}, over)
	if err != nil {
		return err
	}
	return out.Encode(t)
}
