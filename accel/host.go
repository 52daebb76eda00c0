package accel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// Host is the process that runs all relays of a node. It is told what to do by HTTP over a
// unix socket, so that it outlives the agent.
type Host struct {
	log     *slog.Logger
	pins    pins
	without atomic.Int64 // connections that go on without a relay
	ended   chan struct{}
	finish  sync.Once

	mu       sync.Mutex
	onward   *Relay // legs of other nodes' relays, and the counters of all
	relays   *net.TCPListener
	listen   netip.AddrPort
	running  map[string]*hosted
	accounts accounts
}

// Instance is what the host is told of one tenant's relay on its node.
type Instance struct {
	Tenant string            `json:"tenant"`
	NetNS  string            `json:"netns"`  // where clients' connections arrive
	Device string            `json:"device"` // in it
	Work   *onpath.RelayWork `json:"work"`   // nil: nothing yet
}

// Waits reports whether clients are answered once the origin has answered.
func (i Instance) Waits() bool { return i.Work != nil && i.Work.SYN == onpath.SYNWait }

// hosted is an instance at work.
type hosted struct {
	relay *Relay
	in    *Interceptor
	ns    *netnsrun.Namespace
	work  work

	mu sync.Mutex
	is Instance
}

// NewHost returns a host without instances. What takes the place of relays is kept in a folder of the
// BPF file system; "": relays stay in their connections.
func NewHost(log *slog.Logger, folder string) *Host {
	return &Host{log: log, pins: pins{folder: folder}, ended: make(chan struct{}), running: map[string]*hosted{}}
}

// Run serves a control socket until it is told to end.
func (h *Host) Run(l net.Listener) error {
	srv := &http.Server{Handler: h.routes(), ReadHeaderTimeout: headerTimeout}
	go func() {
		<-h.ended
		srv.Close()
	}()
	go h.sweep()
	err := srv.Serve(l)
	h.close()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// maxInstance bounds what one instance is told, bytes.
const maxInstance = 8 << 20

func (h *Host) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /instances/{id}", func(w http.ResponseWriter, r *http.Request) {
		var is Instance
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInstance)).Decode(&is)
		if err == nil {
			err = h.Set(r.PathValue("id"), is)
		}
		answer(w, nil, err)
	})
	mux.HandleFunc("DELETE /instances/{id}", func(w http.ResponseWriter, r *http.Request) {
		h.Remove(r.PathValue("id"))
		answer(w, nil, nil)
	})
	mux.HandleFunc("GET /instances", func(w http.ResponseWriter, _ *http.Request) { answer(w, h.State(), nil) })
	mux.HandleFunc("GET /instances/{id}/full", func(w http.ResponseWriter, r *http.Request) {
		full, err := h.awaitFull(r.Context(), r.PathValue("id"), onpath.RelayFullness(r.URL.Query().Get("was")))
		answer(w, full, err)
	})
	mux.HandleFunc("POST /end", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, nil, nil)
		h.End()
	})
	return mux
}

// End has Run end.
func (h *Host) End() { h.finish.Do(func() { close(h.ended) }) }

func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// HostState is what the host does.
type HostState struct {
	Pid       int      `json:"pid"`
	Instances []string `json:"instances"`
	Stats     Stats    `json:"stats"`
	// Without is how many connections go on without a relay now.
	Without int64 `json:"without"`
	// Holds says that this version lets clients wait for their origin.
	Holds bool `json:"holds"`
	// Used is by instance what it has taken of the process.
	Used map[string]Used `json:"used"`
}

// Used is an instance's part of the process. Of processor time all parts, with those of
// instances that have ended, are what the process took.
type Used struct {
	CPU  time.Duration `json:"cpu"`
	Open int64         `json:"open"` // its connections; memory is theirs, each the same
}

// State returns it.
func (h *Host) State() HostState {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := HostState{Pid: os.Getpid(), Holds: true, Without: h.without.Load(), Used: map[string]Used{}}
	h.accounts.settle(processCPU())
	for id, x := range h.running {
		s.Instances = append(s.Instances, id)
		s.Used[id] = Used{CPU: h.accounts.of[id].cpu, Open: x.work.open.Load()}
	}
	if h.onward != nil {
		s.Stats = h.onward.Stats()
	}
	return s
}

// fullTold is the longest time until awaitFull answers.
const fullTold = 30 * time.Second

// awaitFull waits until an instance's fullness is another one than was, or for fullTold.
func (h *Host) awaitFull(ctx context.Context, id string, was onpath.RelayFullness) (onpath.RelayFullness, error) {
	h.mu.Lock()
	x, shared := h.running[id], h.onward
	h.mu.Unlock()
	if x == nil {
		return "", fmt.Errorf("there is no instance %s", id)
	}
	ctx, cancel := context.WithTimeout(ctx, fullTold)
	defer cancel()
	for {
		full, changed := shared.count.fullFor(x.tenant())
		if full != was {
			return full, nil
		}
		select {
		case <-changed:
		case <-h.ended:
			return was, nil
		case <-ctx.Done():
			return was, nil
		}
	}
}

// Set begins an instance, or changes what one does. On an error the instance is as before.
func (h *Host) Set(id string, is Instance) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if is.Work != nil {
		if err := mayCongest(is.Work.Congestion); err != nil {
			return err
		}
		if err := h.listenAt(is.Work); err != nil {
			return err
		}
	}
	if x := h.running[id]; x != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		if is.NetNS != x.is.NetNS || is.Device != x.is.Device {
			return fmt.Errorf("instance %s is in another network namespace", id)
		}
		x.is = is
		x.relay.Wait(is.Waits())
		return nil
	}
	x, err := h.begin(id, is)
	if err != nil {
		return err
	}
	h.running[id] = x
	h.accounts.begin(id, &x.work, processCPU())
	return nil
}

// listenAt opens the node's port for other relays, once. Callers hold mu.
func (h *Host) listenAt(w *onpath.RelayWork) error {
	if h.relays != nil && h.listen == w.Listen {
		return nil
	}
	if h.relays != nil {
		h.relays.Close()
		h.relays = nil
	}
	shared := h.onward
	onward, err := New(Config{Secret: []byte(w.Secret), Self: w.Listen.Addr(), Origin: h.mayOpen,
		Log: h.log, Shared: shared, work: h.workOf, StepOut: h.stepOut(h.mayVanish)})
	if err != nil {
		return err
	}
	l, err := ListenRelays(w.Listen)
	if err != nil {
		return err
	}
	h.onward, h.relays, h.listen = onward, l, w.Listen
	go func() { _ = onward.ServeRelays(l) }()
	return nil
}

// mayOpen says whether a tenant's accelerators name an origin.
func (h *Host) mayOpen(tenant string, origin netip.AddrPort) error {
	if h.serving(tenant, origin) == nil {
		return fmt.Errorf("no accelerator of tenant %s here names %s", tenant, origin)
	}
	return nil
}

// workOf is whose work a leg of another relay is.
func (h *Host) workOf(tenant string, origin netip.AddrPort) *work {
	if x := h.serving(tenant, origin); x != nil {
		return &x.work
	}
	return nil
}

// serving is a tenant's instance that names an origin; nil: none does.
func (h *Host) serving(tenant string, origin netip.AddrPort) *hosted {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.running {
		if _, ok := x.origin(origin); ok && x.tenant() == tenant {
			return x
		}
	}
	return nil
}

// begin intercepts an instance's connections. Callers hold mu.
func (h *Host) begin(id string, is Instance) (*hosted, error) {
	if h.onward == nil {
		return nil, errors.New("the instance is not told where the node's relay listens")
	}
	if is.Work == nil {
		return nil, errors.New("the instance is not told what it does")
	}
	x := &hosted{is: is}
	var err error
	if x.ns, err = netnsrun.Open(is.NetNS); err != nil {
		return nil, err
	}
	r, err := New(Config{Secret: []byte(is.Work.Secret), Self: is.Work.Listen.Addr(), Router: x, Log: h.log,
		Enter: x.ns.Do, Shared: h.onward, StepOut: h.stepOutOf(id, x),
		work: func(string, netip.AddrPort) *work { return &x.work }})
	if err != nil {
		return nil, errors.Join(err, x.ns.Close())
	}
	x.relay = r
	r.Wait(is.Waits())
	if err := x.ns.Do(func() (err error) {
		x.in, err = Intercept(is.Device, is.Waits(), r.SYN)
		return err
	}); err != nil {
		r.Close()
		return nil, errors.Join(err, x.ns.Close())
	}
	h.onward.count.instance(1)
	go func() { _ = r.Serve(x.in) }()
	return x, nil
}

// Route implements Router.
func (x *hosted) Route(_, origin netip.AddrPort) (Route, error) {
	o, ok := x.origin(origin)
	if !ok {
		return Route{}, fmt.Errorf("no accelerator here names %s", origin)
	}
	next := o.PathFor(o.Size).Next
	return Route{Tenant: x.tenant(), Next: next, Transparent: len(next) == 0, Congestion: x.congestion()}, nil
}

func (x *hosted) origin(a netip.AddrPort) (onpath.RelayOrigin, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.is.Work != nil {
		for _, o := range x.is.Work.Origins {
			if o.Address == a {
				return o, true
			}
		}
	}
	return onpath.RelayOrigin{}, false
}

// vanishes reports whether the instance's relays step out of connections.
func (x *hosted) vanishes(string, netip.AddrPort) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.is.Work != nil && x.is.Work.Vanish
}

// mayVanish says so for the leg of another relay.
func (h *Host) mayVanish(tenant string, origin netip.AddrPort) bool {
	x := h.serving(tenant, origin)
	return x != nil && x.vanishes(tenant, origin)
}

func (x *hosted) congestion() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.is.Work == nil {
		return ""
	}
	return x.is.Work.Congestion
}

func (x *hosted) tenant() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.is.Tenant
}

// Remove ends an instance; its connections are reset.
func (h *Host) Remove(id string) {
	h.mu.Lock()
	x := h.running[id]
	delete(h.running, id)
	h.accounts.end(id, processCPU())
	h.mu.Unlock()
	if x != nil {
		h.end(x)
		h.pins.end(id, x.ns)
		_ = x.ns.Close()
	}
}

func (h *Host) end(x *hosted) {
	x.relay.count.instance(-1)
	if err := x.ns.Do(x.in.Close); err != nil {
		h.log.Debug("an instance's namespace is not as it was", "netns", x.is.NetNS, "err", err)
		x.in.Listener.Close()
	}
	x.relay.Close()
}

func (h *Host) close() {
	h.mu.Lock()
	running := h.running
	h.running = map[string]*hosted{}
	h.mu.Unlock()
	for id, x := range running {
		h.end(x)
		h.pins.end(id, x.ns)
		_ = x.ns.Close()
	}
	h.pins.end(nodeLegs, nil)
	if h.relays != nil {
		h.relays.Close()
		h.onward.Close()
	}
}
