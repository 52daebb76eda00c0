package translog

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/ownership"
	"github.com/onpath/onpath/store"
)

// under is where entries wait in the store until they are in the log.
const under = store.LogPath + "new/"

// head is the record of the newest checkpoint: a server whose files lack entries of it
// signs nothing.
const head = store.LogPath + "head"

// Store writes the entries of each batch with it.
type Store struct {
	onpath.Store
	clock onpath.Clock
	wake  chan struct{}

	mu sync.Mutex
	// held is what is known of chains and claims, to tell what changes.
	held map[onpath.Key]held
}

type held struct {
	cloudlets []string
	state     onpath.ClaimState
	begun     onpath.LogEntry // as it was when the interception began
}

// NewStore has the entries of what is written to s written with it.
func NewStore(ctx context.Context, s onpath.Store, clock onpath.Clock) (*Store, error) {
	out := &Store{Store: s, clock: clock, wake: make(chan struct{}, 1), held: map[onpath.Key]held{}}
	for _, kind := range []onpath.Kind{onpath.KindChain, onpath.KindPrefixClaim} {
		list, _, err := s.List(ctx, kind, "")
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			switch o := o.(type) {
			case *onpath.Chain:
				out.held[onpath.KeyOf(o)] = held{cloudlets: o.Status.Cloudlets, begun: out.interception(ctx, o)}
			case *onpath.PrefixClaim:
				out.held[onpath.KeyOf(o)] = held{state: o.Status.State}
			}
		}
	}
	return out, nil
}

// Write implements onpath.Store.
func (s *Store) Write(ctx context.Context, b onpath.Batch) (onpath.Written, error) {
	entries, next := s.entries(ctx, b.Changes)
	if len(entries) > 0 {
		r, err := s.record(entries)
		if err != nil {
			return onpath.Written{}, err
		}
		b.Records = append(slices.Clip(b.Records), r)
	}
	w, err := s.Store.Write(ctx, b)
	if err != nil {
		return w, err
	}
	s.mu.Lock()
	for k, h := range next {
		if h == nil {
			delete(s.held, k)
		} else {
			s.held[k] = *h
		}
	}
	s.mu.Unlock()
	if len(entries) > 0 {
		s.kick()
	}
	return w, nil
}

// Snapshot implements what a backup needs, where the store can.
func (s *Store) Snapshot(ctx context.Context, w io.Writer) error {
	if inner, ok := s.Store.(interface {
		Snapshot(ctx context.Context, w io.Writer) error
	}); ok {
		return inner.Snapshot(ctx, w)
	}
	return onpath.Errorf(onpath.CodeUnsupported, "this store cannot be backed up")
}

// Note writes an entry whose cause writes nothing: a command, a capture, a refused sign-in.
func (s *Store) Note(ctx context.Context, e onpath.LogEntry) error {
	e.Time = s.clock().UTC().Round(0)
	r, err := s.record([]onpath.LogEntry{e})
	if err == nil {
		_, err = s.Store.Write(ctx, onpath.Batch{Records: []onpath.Record{r}})
	}
	if err == nil {
		s.kick()
	}
	return err
}

func (s *Store) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// record holds entries until they are in the log.
func (s *Store) record(entries []onpath.LogEntry) (onpath.Record, error) {
	b, err := json.Marshal(entries)
	return onpath.Record{Path: fmt.Sprintf("%s%016x-%s", under, s.clock().UnixNano(), rand.Text()[:12]), Value: b}, err
}

// entries are those of changes, and what is known of chains and claims once they are
// written (nil: nothing any more).
func (s *Store) entries(ctx context.Context, changes []onpath.Change) (out []onpath.LogEntry, next map[onpath.Key]*held) {
	next = map[onpath.Key]*held{}
	by, decided := store.Author(ctx), store.IsFollowUp(ctx)
	now := s.clock().UTC().Round(0)
	for _, ch := range changes {
		if ch.Key.Kind.ReadOnly() {
			continue
		}
		if !decided || by != "" || ch.Object == nil || ch.Version == 0 {
			out = append(out, onpath.LogEntry{Time: now, What: onpath.LogChange, By: by, Tenant: ch.Key.Tenant,
				Object: ch.Key.String(), Message: doing(ch)})
		}
		var more []onpath.LogEntry
		switch ch.Key.Kind {
		case onpath.KindChain:
			more, next[ch.Key] = s.chain(ctx, ch)
		case onpath.KindPrefixClaim:
			more, next[ch.Key] = s.claim(ch)
		}
		for _, e := range more {
			e.Time, e.By = now, by
			out = append(out, e)
		}
	}
	return out, next
}

// doing says what a change does; a hash tells versions of an object apart.
func doing(ch onpath.Change) string {
	if ch.Object == nil {
		return "deleted"
	}
	word := "changed"
	if ch.Version == 0 {
		word = "created"
	}
	return word + ", specification sha256:" + specHash(ch.Object)
}

// specHash is that of an object's specification.
func specHash(o onpath.Object) string {
	b, _ := json.Marshal(o) // every Object marshals
	var part struct {
		Spec json.RawMessage `json:"spec"`
	}
	_ = json.Unmarshal(b, &part)
	sum := sha256.Sum256(part.Spec)
	return hex.EncodeToString(sum[:])
}

// known is what is known of a chain or claim.
func (s *Store) known(k onpath.Key) held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[k]
}

// chain tells where a chain begins and ceases to intercept.
func (s *Store) chain(ctx context.Context, ch onpath.Change) (out []onpath.LogEntry, next *held) {
	was := s.known(ch.Key)
	c, _ := ch.Object.(*onpath.Chain)
	var at []string
	if c != nil {
		at = c.Status.Cloudlets
		if c.Spec.Tier == onpath.TierOperator {
			return nil, &held{}
		}
		next = &held{cloudlets: at, begun: was.begun}
	}
	gone, come := without(was.cloudlets, at), without(at, was.cloudlets)
	if len(gone) > 0 {
		e := was.begun
		e.What, e.Cloudlets = onpath.LogEnd, gone
		out = append(out, e)
	}
	if len(come) > 0 {
		next.begun = s.interception(ctx, c)
		e := next.begun
		e.What, e.Cloudlets = onpath.LogBegin, come
		out = append(out, e)
	}
	return out, next
}

func without(list, other []string) (out []string) {
	for _, x := range list {
		if !slices.Contains(other, x) {
			out = append(out, x)
		}
	}
	return out
}

// claim tells how a claim stands.
func (s *Store) claim(ch onpath.Change) (out []onpath.LogEntry, next *held) {
	was := s.known(ch.Key)
	p, _ := ch.Object.(*onpath.PrefixClaim)
	e := onpath.LogEntry{What: onpath.LogClaim, Tenant: ch.Key.Tenant, Object: ch.Key.String()}
	if p == nil {
		e.State, e.Message = onpath.ClaimLost, "the claim was deleted"
		return []onpath.LogEntry{e}, nil
	}
	next = &held{state: p.Status.State}
	if p.Status.State == was.state && was.state != "" {
		return nil, next
	}
	e.Prefixes, e.Method = []onpath.Prefix{p.Spec.Prefix}, p.Spec.Method
	e.State, e.Message = cmp.Or(p.Status.State, onpath.ClaimAsked), p.Status.Evidence
	return []onpath.LogEntry{e}, next
}

// interception is whose packets a chain takes and what they pass.
func (s *Store) interception(ctx context.Context, c *onpath.Chain) onpath.LogEntry {
	tenant := c.Metadata.Tenant
	e := onpath.LogEntry{Tenant: tenant, Object: onpath.KeyOf(c).String(), Prefixes: s.prefixes(ctx, c), Method: s.method(ctx, c)}
	for _, el := range c.Spec.Through {
		f := el.Function
		if el.Deployment != "" {
			t, n := el.Deployment.Resolve(tenant)
			if d, _ := s.get(ctx, onpath.Key{Kind: onpath.KindDeployment, Tenant: t, Name: n}).(*onpath.Deployment); d != nil {
				f = d.Spec.Function
			}
		}
		t, n := f.Resolve(tenant)
		text := t + "/" + n
		if o := s.get(ctx, onpath.Key{Kind: onpath.KindFunction, Tenant: t, Name: n}); o != nil {
			text += "@sha256:" + specHash(o)
		}
		e.Functions = append(e.Functions, text)
	}
	return e
}

func (s *Store) get(ctx context.Context, k onpath.Key) onpath.Object {
	o, err := s.Store.Get(ctx, k)
	if err != nil {
		return nil
	}
	return o
}

// anybody's are the prefixes of chains from any to any.
var anybodys = []onpath.Prefix{{Prefix: netip.MustParsePrefix("0.0.0.0/0")}, {Prefix: netip.MustParsePrefix("::/0")}}

// prefixes are both ends of a chain, but one that is any.
func (s *Store) prefixes(ctx context.Context, c *onpath.Chain) (out []onpath.Prefix) {
	for _, e := range []onpath.Endpoints{c.Spec.From, c.Spec.To} {
		out = append(out, e.Prefixes...)
		if e.Hosts == "" {
			continue
		}
		t, n := e.Hosts.Resolve(c.Metadata.Tenant)
		h, _ := s.get(ctx, onpath.Key{Kind: onpath.KindHosts, Tenant: t, Name: n}).(*onpath.Hosts)
		if h == nil {
			continue
		}
		out = append(append(out, h.Spec.Addresses...), h.Spec.Virtual...)
		if m, _ := s.get(ctx, onpath.Key{Kind: onpath.KindNode, Name: h.Spec.Node}).(*onpath.Node); h.Spec.Node != "" && m != nil {
			for _, a := range m.Status.Addresses {
				out = append(out, onpath.Prefix{Prefix: netip.PrefixFrom(a, a.BitLen())})
			}
		}
	}
	if len(out) == 0 && c.Spec.From.Deployment == "" {
		return anybodys
	}
	const most = 200 // an entry has room for so many
	return out[:min(len(out), most)]
}

// method is how the tenant has proved what a chain takes.
func (s *Store) method(ctx context.Context, c *onpath.Chain) onpath.ClaimMethod {
	objects := map[onpath.Key]onpath.Object{}
	for _, kind := range []onpath.Kind{onpath.KindTenant, onpath.KindPrefixClaim} {
		list, _, err := s.List(ctx, kind, "")
		if err != nil {
			return ""
		}
		for _, o := range list {
			objects[onpath.KeyOf(o)] = o
		}
	}
	t := ownership.New(objects, s.clock())
	for _, p := range s.prefixes(ctx, c) {
		if h, ok := t.Covering(c.Metadata.Tenant, p.Prefix); ok {
			return h.Method
		}
	}
	return onpath.ByOperator
}
