package api

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

// registerStreams adds what answers with a stream or an upgrade; they are plain
// handlers, described by hand.
func (s *Server) registerStreams() {
	tuple := []router.Param{router.Text("src", "source address"), router.Text("dst", "destination address"),
		router.Integer("protocol", "IP protocol number"), router.Integer("srcPort", ""), router.Integer("dstPort", "")}
	instance := "/v1/instances/{tenant}/{name}"
	s.router.Stream("/v1/backup", "backup", "All that the server keeps, as a tar file; for operators on its own machine",
		"application/x-tar", s.backup, router.Boolean("images", "the images that were pushed, too"))
	s.router.Stream("/v1/watch", "watch", "Changes of objects, one JSON line each, after revision from", "application/x-ndjson", s.watch,
		router.Text("kinds", "comma-separated; default all you may see"), router.Text("tenant", ""),
		router.Integer("from", "revision of a list, or of the last line seen; default from now"))
	s.router.Stream("/v1/flows", "flows", "Flow entries of all nodes, one JSON line each", "application/x-ndjson", s.flows,
		append(tuple, router.Text("node", "only this node's"), router.Text("instance", "tenant/name"),
			router.Integer("path", ""))...)
	s.router.Stream("/v1/capture", "capture", "Packets at a vport, as pcapng", "application/x-pcapng", s.capture,
		append(tuple, router.Text("instance", "tenant/name"), router.Boolean("back", "the second side of a bridged instance"),
			router.Text("node", "the uplinks of a gateway"), router.Integer("count", "packets"),
			router.Integer("length", "bytes kept of each"))...)
	s.router.Stream("/v1/traffic", "traffic", "What chains, instances and nodes carry, a JSON line each second, the last ten minutes first",
		"application/x-ndjson", s.serveTraffic, router.Text("tenant", "default all you may see"))
	s.router.Stream("/v1/notifications", "notifications", "What functions told their owners, one JSON line each, the latest last",
		"application/x-ndjson", s.notifications, router.Text("tenant", "default all you may see"),
		router.Text("instance", "only this one's"), router.Integer("limit", "the latest so many; default 100"),
		router.Boolean("follow", "go on with what comes"))
	s.router.Stream("/v1/audit", "audit", "Entries of the log in clear, one JSON line each, the latest last", "application/x-ndjson",
		logging{s}.audit,
		router.Text("tenant", "default all you may see"), router.Integer("limit", "the latest so many; default 100"))
	s.router.Stream(instance+"/logs", "logs", "The output of an instance", "text/plain", s.logs,
		router.Integer("tail", "last lines; default all"), router.Boolean("follow", ""),
		router.Boolean("previous", "of the run before the present one"))
	s.router.Stream(instance+"/exec", "exec", "A command in an instance; an upgrade to "+session.ExecProtocol,
		"application/octet-stream", s.exec,
		router.Text("command", "repeated: the command and its arguments"), router.Boolean("tty", ""), router.Boolean("stdin", ""))
}

// instance finds an instance.
func (s *Server) instance(ctx context.Context, tenant, name string) (*onpath.Instance, error) {
	o, err := s.o.Store.Get(ctx, onpath.Key{Kind: onpath.KindInstance, Tenant: tenant, Name: name})
	if err != nil {
		return nil, err
	}
	return o.(*onpath.Instance), nil
}

// grace is how long an operation may take to fail with a status of its own; a
// log that nobody writes to must not hold back the header for longer.
const grace = 300 * time.Millisecond

// relay copies a node's answer to the caller as it comes.
func (s *Server) relay(w http.ResponseWriter, r *http.Request, mediaType, node string, op onpath.NodeOp, request any) error {
	c, err := s.o.Hub.Call(r.Context(), node, op, request)
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

func (s *Server) serveSession(w http.ResponseWriter, r *http.Request) error {
	who := rights.WhoIs(r.Context())
	peer := session.Peer{Credential: who.Credential, Address: r.RemoteAddr}
	if who.Role == auth.RoleNode {
		peer.Node, peer.Grant = who.Name, s.o.Authority.Grant(who)
	} else {
		peer.Address = "the unix socket"
	}
	if r.Header.Get("Upgrade") != session.Protocol {
		return onpath.Errorf(onpath.CodeUnsupported, "this server speaks %s with nodes", session.Protocol)
	}
	s.o.Hub.ServeSession(w, r, peer)
	return nil
}
