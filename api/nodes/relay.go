package nodes

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/session"
)

// instance finds an instance.
func (s *Nodes) instance(ctx context.Context, tenant, name string) (*onpath.Instance, error) {
	o, err := s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindInstance, Tenant: tenant, Name: name})
	if err != nil {
		return nil, err
	}
	return o.(*onpath.Instance), nil
}

// grace is how long an operation may take to fail with a status of its own; a
// log that nobody writes to must not hold back the header for longer.
const grace = 300 * time.Millisecond

// relay copies a node's answer to the caller as it comes.
func (s *Nodes) relay(w http.ResponseWriter, r *http.Request, mediaType, node string, op onpath.NodeOp, request any) error {
	c, err := s.d.Hub.Call(r.Context(), node, op, request)
	if err != nil {
		return err
	}
	defer c.Close()
	type piece struct {
		data []byte
		err  error
	}
	pieces := make(chan piece)
	go func() {
		defer close(pieces)
		for {
			b := make([]byte, 32<<10)
			n, err := c.Read(b)
			select {
			case pieces <- piece{b[:n], err}:
			case <-r.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	out := router.NewStream(w, mediaType)
	first := time.NewTimer(grace)
	defer first.Stop()
	for {
		select {
		case p := <-pieces:
			if p.err != nil && p.err != io.EOF {
				if p.err = router.Stopped(r.Context(), p.err); !out.Begun() {
					return p.err
				}
			}
			out.Send(p.data)
			if p.err != nil {
				out.End(p.err)
				return nil
			}
		case <-first.C:
			out.Send(nil)
		case <-r.Context().Done(): // the caller is gone, or else has to hear why this is not all
			out.End(router.Stopped(r.Context(), nil))
			return nil
		}
	}
}

func (s *Nodes) serveSession(w http.ResponseWriter, r *http.Request) error {
	who := rights.WhoIs(r.Context())
	peer := session.Peer{Credential: who.Credential, Address: r.RemoteAddr}
	if who.Role == auth.RoleNode {
		peer.Node, peer.Grant = who.Name, s.d.Authority.Grant(who)
	} else {
		peer.Address = "the unix socket"
	}
	if r.Header.Get("Upgrade") != session.Protocol {
		return onpath.Errorf(onpath.CodeUnsupported, "this server speaks %s with nodes", session.Protocol)
	}
	s.d.Hub.ServeSession(w, r, peer)
	return nil
}
