package notify

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
)

// WebhookOptions are what Webhooks needs.
type WebhookOptions struct {
	Keeper *Keeper
	// List is every tenant's webhooks.
	List func(context.Context) ([]*onpath.Webhook, error)
	// Underlay is the nodes' addresses there.
	Underlay func(context.Context) ([]netip.Addr, error)
	// Allowed are targets beside public addresses.
	Allowed []netip.Prefix
	// Secrets are the server's own, the same at every start, the newest first. While there is
	// more than one, each notification is signed for all.
	Secrets func() [][]byte
	Log     *slog.Logger
	Now     func() time.Time
}

// Webhooks sends notifications to where their tenants want them. The keeper's files are
// the queue: what is not sent yet stays there, bounded as they are, and how far each
// webhook is stands beside them. Each is sent in order, one at a time, until its receiver
// takes it or a day is over; with the same id however often.
type Webhooks struct {
	o       WebhookOptions
	client  *http.Client
	backOff time.Duration // after the first failure
	mu      sync.Mutex
	hooks   map[onpath.Key]*hook
}

// hook is a webhook at work.
type hook struct {
	all   *Webhooks
	w     *onpath.Webhook
	shelf *shelf
	path  string // of the file with the position
	stop  context.CancelFunc
	done  chan struct{}
	mu    sync.Mutex
	at    position
	state onpath.WebhookState // Failures and Message
}

// position is how far a webhook is in its tenant's notifications.
type position struct {
	UID     string `json:"uid"` // another Webhook of that name begins anew
	Number  uint64 `json:"number"`
	Sent    uint64 `json:"sent"`
	Dropped uint64 `json:"dropped"`
}

// NewWebhooks sends nothing before Run.
func NewWebhooks(o WebhookOptions) *Webhooks {
	t := &targets{allowed: o.Allowed, underlay: o.Underlay, own: net.InterfaceAddrs}
	return &Webhooks{o: o, client: newClient(t), backOff: firstBackOff, hooks: map[onpath.Key]*hook{}}
}

// Run sends until ctx ends.
func (h *Webhooks) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if list, err := h.o.List(ctx); err == nil {
			h.set(ctx, list)
		} else if ctx.Err() == nil {
			h.o.Log.Warn("webhooks stay as they were", "err", err)
		}
		pause(ctx, lookEvery)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.hooks {
		x.end()
	}
	h.client.CloseIdleConnections()
	return nil
}

// set has those webhooks at work that there are.
func (h *Webhooks) set(ctx context.Context, list []*onpath.Webhook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	there := map[onpath.Key]bool{}
	for _, w := range list {
		k := onpath.KeyOf(w)
		there[k] = true
		x := h.hooks[k]
		if x != nil && x.w.Metadata.UID == w.Metadata.UID && x.w.Spec == w.Spec {
			continue
		}
		if x != nil {
			x.end()
		}
		delete(h.hooks, k)
		if x, err := h.begin(ctx, w); err == nil {
			h.hooks[k] = x
		} else {
			h.o.Log.Error("a webhook cannot begin", "webhook", k, "err", err)
		}
	}
	for k, x := range h.hooks {
		if !there[k] {
			x.end()
			delete(h.hooks, k)
			_ = os.Remove(x.path)
		}
	}
}

// begin goes on from where a webhook was, or from now on.
func (h *Webhooks) begin(ctx context.Context, w *onpath.Webhook) (*hook, error) {
	s, err := h.o.Keeper.shelf(w.Metadata.Tenant, true)
	if err != nil {
		return nil, err
	}
	x := &hook{all: h, w: w, shelf: s, done: make(chan struct{}),
		path: filepath.Join(h.o.Keeper.dir, w.Metadata.Tenant, "webhook-"+w.Metadata.Name+".json")}
	b, err := os.ReadFile(x.path)
	if err == nil {
		err = json.Unmarshal(b, &x.at)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	last, _ := s.spool.Last()
	x.at.Number = min(x.at.Number, last) // the notifications may be an older copy
	if x.at.UID != w.Metadata.UID {
		x.at = position{UID: w.Metadata.UID, Number: last}
		if err := x.save(); err != nil {
			return nil, err
		}
	}
	ctx, x.stop = context.WithCancel(ctx)
	go x.run(ctx)
	return x, nil
}

func (x *hook) end() {
	x.stop()
	<-x.done
}

func (x *hook) save() error {
	x.mu.Lock()
	b, err := json.Marshal(x.at)
	x.mu.Unlock()
	if err != nil {
		return err
	}
	return wholefile.Write(x.path, b, 0o640)
}

func (x *hook) run(ctx context.Context) {
	defer close(x.done)
	for ctx.Err() == nil {
		more := x.all.o.Keeper.more()
		saved, sent := x.at.Number, x.at.Sent
		err := x.shelf.spool.Read(x.at.Number, func(number uint64, line []byte) error {
			if err := x.pass(ctx, line); err != nil {
				return err
			}
			x.note(func() { x.at.Number = number })
			if x.at.Sent != sent {
				x.keep()
				saved, sent = number, x.at.Sent
			}
			return nil
		})
		if x.at.Number != saved {
			x.keep()
		}
		if err != nil && ctx.Err() == nil {
			x.log().Error("notifications cannot be read", "err", err)
			pause(ctx, x.all.backOff)
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
		}
	}
}

func (x *hook) log() *slog.Logger {
	return x.all.o.Log.With("webhook", onpath.KeyOf(x.w).String())
}

// keep saves the position; without, what was sent is sent again after a restart.
func (x *hook) keep() {
	if err := x.save(); err != nil {
		x.log().Warn("how far the webhook is cannot be kept", "err", err)
	}
}

// pass is done with one notification when it is sent, not meant, or too old. It fails only
// when ctx ends.
func (x *hook) pass(ctx context.Context, line []byte) error {
	var n onpath.Notification
	if json.Unmarshal(line, &n) != nil || !n.Level.AtLeast(x.w.Spec.Level) {
		return nil
	}
	for wait := x.all.backOff; ; wait = min(2*wait, longestWait) {
		if x.all.o.Now().Sub(n.Time) > giveUpAfter {
			x.note(func() { x.at.Dropped++ })
			return nil
		}
		err := post(ctx, x.all.client, x.w, secretsOf(x.all.o.Secrets(), x.w), n, x.all.o.Now())
		if err == nil {
			x.note(func() { x.at.Sent++; x.state.Failures, x.state.Message = 0, "" })
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		reason := err.Error()
		reason = reason[:min(len(reason), longestReason)]
		x.note(func() { x.state.Failures++; x.state.Message = reason })
		if wait == x.all.backOff {
			x.log().Warn("a webhook is not taken; it is sent again", "err", reason)
		}
		if pause(ctx, wait); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (x *hook) note(change func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change()
}

// State is how a webhook fares.
func (h *Webhooks) State(w *onpath.Webhook) onpath.WebhookState {
	h.mu.Lock()
	x := h.hooks[onpath.KeyOf(w)]
	h.mu.Unlock()
	var s onpath.WebhookState
	if x != nil && x.at.UID == w.Metadata.UID {
		x.note(func() { s = x.state; s.Sent, s.Dropped = x.at.Sent, x.at.Dropped })
	}
	s.Secret = secretText(secretsOf(h.o.Secrets(), w)[0])
	return s
}
