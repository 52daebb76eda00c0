// Package nodes is the part of the API that nodes answer, through the session of each: flow
// entries, counters, captures, logs, commands, faults, traffic; and the sessions themselves.
package nodes

import (
	"context"
	"io"
	"log/slog"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/session"
)

// Hub has the sessions of nodes.
type Hub interface {
	Connected() []string
	Call(ctx context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error)
	ServeSession(w http.ResponseWriter, r *http.Request, who session.Peer)
}

// Counters has what nodes count.
type Counters interface {
	// Counters are what a node has counted, asked once a second at most for all who want to know.
	Counters(ctx context.Context, node string) (*onpath.Counters, error)
}

// Deps are what the part needs of others.
type Deps struct {
	Store     onpath.Store
	Hub       Hub
	Counters  Counters
	Authority *auth.Authority // nil: no node comes from elsewhere
	Log       *slog.Logger
}

// Nodes answers by what nodes say.
type Nodes struct {
	d       Deps
	router  *router.Router
	traffic *traffic
}

// Register adds the part's routes.
func Register(rt *router.Router, d Deps) {
	s := &Nodes{d: d, router: rt, traffic: &traffic{d: d}}
	s.registerPerNode()
	s.registerFaults()
	s.registerTrials()
	tuple := []router.Param{router.Text("src", "source address"), router.Text("dst", "destination address"),
		router.Integer("protocol", "IP protocol number"), router.Integer("srcPort", ""), router.Integer("dstPort", "")}
	instance := "/v1/instances/{tenant}/{name}"
	rt.Stream("/v1/flows", "flows", "Flow entries of all nodes, one JSON line each", "application/x-ndjson", s.flows,
		append(tuple, router.Text("node", "only this node's"), router.Text("instance", "tenant/name"),
			router.Integer("path", ""))...)
	rt.Stream("/v1/capture", "capture", "Packets at a vport, as pcapng", "application/x-pcapng", s.capture,
		append(tuple, router.Text("instance", "tenant/name"), router.Boolean("back", "the second side of a bridged instance"),
			router.Text("node", "the uplinks of a gateway"), router.Integer("count", "packets"),
			router.Integer("length", "bytes kept of each"))...)
	rt.Stream("/v1/traffic", "traffic", "What chains, instances and nodes carry, a JSON line each second, the last ten minutes first",
		"application/x-ndjson", s.traffic.serve, router.Text("tenant", "default all you may see"))
	rt.Stream(instance+"/logs", "logs", "The output of an instance", "text/plain", s.logs,
		router.Integer("tail", "last lines; default all"), router.Boolean("follow", ""),
		router.Boolean("previous", "of the run before the present one"))
	rt.Stream(instance+"/exec", "exec", "A command in an instance; an upgrade to "+session.ExecProtocol,
		"application/octet-stream", s.exec,
		router.Text("command", "repeated: the command and its arguments"), router.Boolean("tty", ""), router.Boolean("stdin", ""))
	rt.Handle("GET "+session.Path, "session", s.serveSession)
}
