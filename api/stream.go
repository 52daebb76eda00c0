package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/api/wire"
)

// param is a query parameter of a stream, for its description.
type param struct{ name, kind, doc string }

// registerStreams adds what answers with a stream or an upgrade; they are plain
// handlers, described by hand.
func (s *Server) registerStreams() {
	tuple := []param{{"src", "string", "source address"}, {"dst", "string", "destination address"},
		{"protocol", "integer", "IP protocol number"}, {"srcPort", "integer", ""}, {"dstPort", "integer", ""}}
	instance := "/v1/instances/{tenant}/{name}"
	s.stream("/v1/backup", "backup", "All that the server keeps, as a tar file; for operators on its own machine",
		"application/x-tar", s.backup, param{"images", "boolean", "the images that were pushed, too"})
	s.stream("/v1/watch", "watch", "Changes of objects, one JSON line each, after revision from", "application/x-ndjson", s.watch,
		param{"kinds", "string", "comma-separated; default all you may see"}, param{"tenant", "string", ""},
		param{"from", "integer", "revision of a list, or of the last line seen; default from now"})
	s.stream("/v1/flows", "flows", "Flow entries of all nodes, one JSON line each", "application/x-ndjson", s.flows,
		append(tuple, param{"node", "string", "only this node's"}, param{"instance", "string", "tenant/name"},
			param{"path", "integer", ""})...)
	s.stream("/v1/capture", "capture", "Packets at a vport, as pcapng", "application/x-pcapng", s.capture,
		append(tuple, param{"instance", "string", "tenant/name"}, param{"back", "boolean", "the second side of a bridged instance"},
			param{"node", "string", "the uplinks of a gateway"}, param{"count", "integer", "packets"},
			param{"length", "integer", "bytes kept of each"})...)
	s.stream("/v1/traffic", "traffic", "What chains, instances and nodes carry, a JSON line each second, the last ten minutes first",
		"application/x-ndjson", s.serveTraffic, param{"tenant", "string", "default all you may see"})
	s.stream("/v1/notifications", "notifications", "What functions told their owners, one JSON line each, the latest last",
		"application/x-ndjson", s.notifications, param{"tenant", "string", "default all you may see"},
		param{"instance", "string", "only this one's"}, param{"limit", "integer", "the latest so many; default 100"},
		param{"follow", "boolean", "go on with what comes"})
	s.stream("/v1/audit", "audit", "Entries of the log in clear, one JSON line each, the latest last", "application/x-ndjson",
		logging{s}.audit,
		param{"tenant", "string", "default all you may see"}, param{"limit", "integer", "the latest so many; default 100"})
	s.stream(instance+"/logs", "logs", "The output of an instance", "text/plain", s.logs,
		param{"tail", "integer", "last lines; default all"}, param{"follow", "boolean", ""},
		param{"previous", "boolean", "of the run before the present one"})
	s.stream(instance+"/exec", "exec", "A command in an instance; an upgrade to "+session.ExecProtocol, "application/octet-stream", s.exec,
		param{"command", "string", "repeated: the command and its arguments"}, param{"tty", "boolean", ""}, param{"stdin", "boolean", ""})
}

func (s *Server) stream(path, id, summary, mediaType string, do func(http.ResponseWriter, *http.Request) error, params ...param) {
	s.mux.HandleFunc("GET "+path, s.guarded(id, do))
	op := operation(http.MethodGet, path, id, summary)
	op.Parameters = pathParams(path)
	for _, p := range params {
		op.Parameters = append(op.Parameters, &huma.Param{Name: p.name, In: "query", Description: p.doc,
			Schema: &huma.Schema{Type: p.kind}})
	}
	op.Responses = map[string]*huma.Response{"200": {Description: summary, Content: map[string]*huma.MediaType{mediaType: {}}}}
	s.doc.OpenAPI().AddOperation(&op)
}

func pathNames(path string) (names []string) {
	for i := 0; i < len(path); i++ {
		if path[i] == '{' {
			j := i
			for path[j] != '}' {
				j++
			}
			names = append(names, path[i+1:j])
			i = j
		}
	}
	return names
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
	out := &lazyHeader{w: w, mediaType: mediaType}
	first := time.NewTimer(grace)
	defer first.Stop()
	for {
		select {
		case p := <-pieces:
			if p.err != nil && p.err != io.EOF {
				if p.err = stopped(r.Context(), p.err); !out.begun {
					return p.err
				}
			}
			out.write(p.data)
			if p.err != nil {
				out.end(p.err)
				return nil
			}
		case <-first.C:
			out.write(nil)
		case <-r.Context().Done(): // the caller is gone, or else has to hear why this is not all
			out.end(stopped(r.Context(), nil))
			return nil
		}
	}
}

// lazyHeader sends the header of a stream with its first bytes, and what went
// wrong afterwards in a trailer.
type lazyHeader struct {
	w         http.ResponseWriter
	mediaType string
	begun     bool
}

func (l *lazyHeader) write(b []byte) {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", l.mediaType)
		l.w.Header().Set("Trailer", wire.Trailer)
		l.w.WriteHeader(http.StatusOK)
	}
	_, _ = l.w.Write(b) // a caller who is gone ends the request's context
	_ = http.NewResponseController(l.w).Flush()
}

func (l *lazyHeader) end(err error) {
	if !l.begun {
		l.write(nil)
	}
	if err != nil && err != io.EOF { // one that wraps it is no end
		b, _ := json.Marshal(listed(err)[0]) // strings only
		l.w.Header().Set(wire.Trailer, string(b))
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
