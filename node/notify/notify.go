// Package notify accepts what functions tell their owner, and keeps it until the server has it.
package notify

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/spool"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/node/base"
)

// What functions tell their owner (GNFC §III-D). The agent listens in the network namespace
// of each container: no packet leaves it, and so no address or rule is needed, and nobody
// else can reach it. What is accepted is on disk; the server fetches it from there.

const (
	notifySpoolBytes = 64 << 20 // of one node; what comes above is refused
	maxNotifyBody    = 16 << 10
	// An instance may tell this much a second, and after a rest so much at once.
	notifyRate  = 300
	notifyBurst = 600
	// Connections that an instance may have at either address; they are files of the agent's.
	notifyConnections = 16
)

// errTooMuch is why a notification is refused for now.
var errTooMuch = errors.New("it tells too much: try again in a second")

// Notifier accepts notifications and keeps them until the server has them.
type Notifier struct {
	node  string
	since string // tells numbers apart from those before the folder was lost
	spool *spool.Spool
	now   func() time.Time
	log   *slog.Logger
	mu    sync.Mutex
	doors map[string]*door // by instance id
}

// door is where one instance tells something.
type door struct {
	listeners []net.Listener
	server    *http.Server
	who       onpath.Notification // as it begins
	mu        sync.Mutex
	left      float64 // notifications that it may tell at once
	at        time.Time
}

// Open makes a notifier that keeps what it accepts in a folder.
func Open(node, dir string, now func() time.Time, log *slog.Logger) (*Notifier, error) {
	s, err := spool.Open(dir, notifySpoolBytes)
	if err != nil {
		return nil, fmt.Errorf("open the notifications that the server has not fetched: %w", err)
	}
	since, err := sinceOf(dir)
	if err != nil {
		return nil, err
	}
	return &Notifier{node: node, since: since, spool: s, now: now, log: log, doors: map[string]*door{}}, nil
}

// sinceOf is the word by which this folder's numbers are known, made once.
func sinceOf(dir string) (string, error) {
	path := filepath.Join(dir, "since")
	if b, err := os.ReadFile(path); err == nil && len(b) == 16 {
		return string(b), nil
	}
	since := rand.Text()[:16]
	return since, wholefile.Write(path, []byte(since), 0o600)
}

// Open listens in an instance's namespace. Doing it twice changes nothing.
func (n *Notifier) Open(id, netns string, plan onpath.InstancePlan) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.doors[id] != nil {
		return nil
	}
	d := &door{who: onpath.Notification{Tenant: plan.Tenant, Instance: plan.Name, Function: plan.Function, Node: n.node},
		left: notifyBurst, at: n.now()}
	err := netnsrun.Do(netns, func() error {
		for _, at := range [][2]string{{"tcp", onpath.NotifyAddress}, {"unix", onpath.NotifySocket}} {
			l, err := net.Listen(at[0], at[1])
			if err != nil {
				return err
			}
			d.listeners = append(d.listeners, netutil.LimitListener(l, notifyConnections))
		}
		return nil
	})
	if err != nil {
		d.close()
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /notify", func(w http.ResponseWriter, r *http.Request) { n.serve(d, w, r) })
	d.server = &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)}
	for _, l := range d.listeners {
		go func() { _ = d.server.Serve(l) }()
	}
	n.doors[id] = d
	return nil
}

func (d *door) close() {
	if d.server != nil {
		_ = d.server.Close()
	}
	for _, l := range d.listeners {
		_ = l.Close()
	}
}

// Shut ends what open began.
func (n *Notifier) Shut(id string) {
	n.mu.Lock()
	d := n.doors[id]
	delete(n.doors, id)
	n.mu.Unlock()
	if d != nil {
		d.close()
	}
}

// Close lets go of all; what is on disk stays.
func (n *Notifier) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.doors {
		d.close()
	}
	_ = n.spool.Close()
}

// may takes one from what the instance may tell.
func (d *door) may(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = min(notifyBurst, d.left+now.Sub(d.at).Seconds()*notifyRate)
	if d.at = now; d.left < 1 {
		return false
	}
	d.left--
	return true
}

func (n *Notifier) serve(d *door, w http.ResponseWriter, r *http.Request) {
	if !d.may(n.now()) {
		refuseNotification(w, http.StatusTooManyRequests, errTooMuch)
		return
	}
	said := d.who
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxNotifyBody))
	var body struct {
		Level       onpath.NotificationLevel
		Title, Text string
		Fields      map[string]string
	}
	dec.DisallowUnknownFields()
	if err := dec.Decode(&body); err != nil {
		refuseNotification(w, http.StatusBadRequest, fmt.Errorf("write JSON with level, title, text and fields: %w", err))
		return
	}
	said.Level, said.Title, said.Text, said.Fields = body.Level, body.Title, body.Text, body.Fields
	if err := said.Validate(); err != nil {
		refuseNotification(w, http.StatusBadRequest, err)
		return
	}
	said.Time = n.now().UTC()
	line, err := json.Marshal(&said)
	if err == nil {
		_, err = n.spool.Append(line)
	}
	switch {
	case errors.Is(err, spool.ErrFull):
		refuseNotification(w, http.StatusTooManyRequests, errors.New("the node keeps too many that the server has not fetched"))
	case err != nil:
		n.log.Error("a notification is not kept", "instance", said.Instance, "err", err)
		refuseNotification(w, http.StatusInternalServerError, errors.New("the node cannot keep it"))
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func refuseNotification(w http.ResponseWriter, status int, err error) {
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, err.Error(), status)
}

// Deliver sends what the spool has, and then what comes, one JSON line each, and lets go of
// what the other end says that it has stored, by its number in a line.
func (n *Notifier) Deliver(ctx context.Context, stream io.ReadWriter) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		dec := json.NewDecoder(stream)
		for {
			var stored uint64
			if dec.Decode(&stored) != nil {
				return
			}
			if err := n.spool.Drop(stored); err != nil {
				n.log.Warn("notifications that the server has stay on this node", "err", err)
			}
		}
	}()
	if err := json.NewEncoder(stream).Encode(n.since); err != nil {
		return err
	}
	for sent := uint64(0); ; {
		last, more := n.spool.Last()
		var batch bytes.Buffer
		err := n.spool.Read(sent, func(number uint64, line []byte) error {
			fmt.Fprintf(&batch, "{\"number\":%d,\"said\":%s}\n", number, line)
			if sent = number; batch.Len() > 1<<18 {
				_, err := batch.WriteTo(stream)
				return err
			}
			return ctx.Err()
		})
		if err == nil && batch.Len() > 0 {
			_, err = batch.WriteTo(stream)
		}
		if err != nil {
			return err
		}
		if sent = max(sent, last); ctx.Err() != nil {
			return ctx.Err()
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}

// Dir has what functions told and the server has not fetched.
func Dir(d base.Dir) string { return d.File("notifications") }
