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
	"maps"
	"slices"
	"sync"

	"github.com/onpath/onpath"
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
	salt  []byte

	mu sync.Mutex
	// held is what is known of chains, leases and claims, to tell what changes.
	held map[onpath.Key]held
	// titles are the Tenants and PrefixClaims, which say by what title tenants intercept.
	titles map[onpath.Key]onpath.Object
}

type held struct {
	chain     *onpath.Chain
	cloudlets []string
	begun     onpath.LogEntry // as it was when the interception began
	same      bool            // but for begun, all is as it was

	state  onpath.ClaimState
	prefix onpath.Prefix
}

// NewStore has the entries of what is written to s written with it. salt, which nobody else
// knows, keeps strangers from trying what functions may be made of against their hashes.
func NewStore(ctx context.Context, s onpath.Store, clock onpath.Clock, salt []byte) (*Store, error) {
	out := &Store{
		Store: s, clock: clock, salt: salt, wake: make(chan struct{}, 1),
		held: map[onpath.Key]held{}, titles: map[onpath.Key]onpath.Object{},
	}
	v := view{Store: out, changed: map[onpath.Key]onpath.Object{}, whole: true}
	for _, kind := range entryKinds {
		list, _, err := s.List(ctx, kind, "")
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			v.changed[onpath.KeyOf(o)] = o
		}
	}
	out.retitle(v.changed)
	for k, o := range v.changed {
		switch o := o.(type) {
		case *onpath.Chain:
			out.held[k] = held{chain: o, cloudlets: o.Status.Cloudlets, begun: v.interception(ctx, o)}
		case *onpath.Lease:
			out.held[k] = *v.leased(ctx, o)
		case *onpath.PrefixClaim:
			out.held[k] = held{state: claimState(o), prefix: o.Spec.Prefix}
		}
	}
	return out, nil
}

// entryKinds are the kinds of objects that entries tell of, and that they are made from.
var entryKinds = []onpath.Kind{onpath.KindChain, onpath.KindLease, onpath.KindPrefixClaim, onpath.KindTenant, onpath.KindHosts,
	onpath.KindNode, onpath.KindDeployment, onpath.KindFunction}

// isTitle reports whether objects of a kind say by what title tenants intercept.
func isTitle(k onpath.Kind) bool { return k == onpath.KindTenant || k == onpath.KindPrefixClaim }

// retitle takes up the Tenants and PrefixClaims among changed objects.
func (s *Store) retitle(changed map[onpath.Key]onpath.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, o := range changed {
		switch {
		case !isTitle(k.Kind):
		case o == nil:
			delete(s.titles, k)
		default:
			s.titles[k] = o
		}
	}
}

// withTitles are the Tenants and PrefixClaims once changes are written.
func (s *Store) withTitles(changed map[onpath.Key]onpath.Object) map[onpath.Key]onpath.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.titles)
	for k, o := range changed {
		if isTitle(k.Kind) {
			all[k] = o
		}
	}
	return all
}

// Write implements onpath.Store.
func (s *Store) Write(ctx context.Context, b onpath.Batch) (onpath.Written, error) {
	v := &view{Store: s, changed: map[onpath.Key]onpath.Object{}}
	for _, ch := range b.Changes {
		v.changed[ch.Key] = ch.Object
	}
	entries, next := v.entries(ctx, b.Changes)
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
	s.retitle(v.changed)
	s.mu.Lock()
	s.hold(next)
	s.mu.Unlock()
	if len(entries) > 0 {
		s.kick()
	}
	return w, nil
}

// hold takes up what is known of chains, leases and claims. Needs mu.
func (s *Store) hold(next map[onpath.Key]*held) {
	for k, h := range next {
		was, there := s.held[k]
		switch {
		case h == nil:
			delete(s.held, k)
		case !h.same:
			s.held[k] = *h
		case there:
			was.begun = h.begun
			s.held[k] = was
		}
	}
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

// entries are those of changes, and what is known of chains, leases and claims once they are
// written (nil: nothing any more).
func (v *view) entries(ctx context.Context, changes []onpath.Change) (out []onpath.LogEntry, next map[onpath.Key]*held) {
	next = map[onpath.Key]*held{}
	decided, now := store.IsFollowUp(ctx), v.clock().UTC().Round(0)
	for _, ch := range changes {
		by := store.AuthorOf(ctx, ch.Key)
		lease := ch.Key.Kind == onpath.KindLease
		if ch.Key.Kind.ReadOnly() && !lease || ch.Object == nil && by == "" && store.IsFiled(ctx) {
			continue
		}
		if !lease && !decided || by != "" || ch.Object == nil || ch.Version == 0 {
			out = append(out, onpath.LogEntry{Time: now, What: onpath.LogChange, By: by, Tenant: ch.Key.Tenant,
				Object: ch.Key.String(), Life: lifeOf(ch), Message: doing(ch)})
		}
		var more []onpath.LogEntry
		switch ch.Key.Kind {
		case onpath.KindChain:
			more, next[ch.Key] = v.chain(ctx, ch)
		case onpath.KindLease:
			more, next[ch.Key] = v.lease(ctx, ch)
		case onpath.KindPrefixClaim:
			more, next[ch.Key] = v.claim(ch)
		case onpath.KindHosts, onpath.KindDeployment, onpath.KindFunction:
			if !decided || by != "" {
				more = v.edited(ctx, ch.Key, next)
			}
		}
		for _, e := range more {
			e.Time, e.By = now, by
			out = append(out, e)
		}
	}
	return out, next
}

// lifeOf says whether a change begins or ends an object.
func lifeOf(ch onpath.Change) onpath.LogLife {
	switch {
	case ch.Object == nil:
		return onpath.LogDeleted
	case ch.Version == 0:
		return onpath.LogCreated
	}
	return ""
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
func (v *view) chain(ctx context.Context, ch onpath.Change) (out []onpath.LogEntry, next *held) {
	was := v.known(ch.Key)
	c, _ := ch.Object.(*onpath.Chain)
	var at []string
	if c != nil {
		at = c.Status.Cloudlets
		if c.Spec.Tier == onpath.TierOperator {
			return nil, &held{}
		}
		next = &held{chain: c, cloudlets: at, begun: was.begun}
	}
	gone, come := without(was.cloudlets, at), without(at, was.cloudlets)
	if c != nil && was.chain != nil && len(gone) < len(was.cloudlets) && !store.SameSpec(was.chain, c) &&
		!sameTraffic(was.begun, v.interception(ctx, c)) {
		gone, come = was.cloudlets, at // of something else from now on
	}
	if len(gone) > 0 {
		e := was.begun
		e.What, e.Cloudlets = onpath.LogEnd, gone
		out = append(out, e)
	}
	if len(come) > 0 {
		next.begun = v.interception(ctx, c)
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
	if was.state != "" && (p == nil || p.Spec.Prefix != was.prefix) {
		e.Prefixes, e.State, e.Message = []onpath.Prefix{was.prefix}, onpath.ClaimLost, "the claim was deleted"
		if p != nil {
			e.Message = "the claim is for " + p.Spec.Prefix.String() + " from now on"
		}
		out, was = append(out, e), held{}
	}
	if p == nil {
		return out, nil
	}
	next = &held{state: claimState(p), prefix: p.Spec.Prefix}
	if next.state == was.state {
		return out, next
	}
	e.Prefixes, e.Method = []onpath.Prefix{p.Spec.Prefix}, p.Spec.Method
	e.State, e.Message = next.state, p.Status.Evidence
	return append(out, e), next
}

// claimState is that of a claim for the prefix that it has now.
func claimState(p *onpath.PrefixClaim) onpath.ClaimState {
	st := &p.Status
	if (st.State == onpath.ClaimProved || st.State == onpath.ClaimExpiring) && st.Prefix != p.Spec.Prefix {
		return onpath.ClaimAsked
	}
	return cmp.Or(st.State, onpath.ClaimAsked)
}
