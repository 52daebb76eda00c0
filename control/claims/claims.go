// Package claims asks for what claims of prefixes rest on.
package claims

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/events"
	"github.com/onpath/onpath/control/timer"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/store"
)

// Claims that wait are asked for every soonAgain in the first claimYoung of their life,
// later every lateAgain.
const (
	soonAgain  = time.Second
	lateAgain  = 10 * time.Second
	claimYoung = 2 * time.Minute
)

// asking bounds the claims that are asked for at once. A tenant's claims that prove nothing are
// asked for askingUnproved times a second, and some at once: any address may be claimed, and who has
// it did not ask to be asked. Proved claims are asked for more often, so that many of a tenant do not
// run out; they are bounded, too, as each question is a call of two gateways or more.
const (
	asking            = 8
	askingUnproved    = 1
	askingProved      = 10
	askingATenantOnce = 10
)

// Hub reaches the nodes.
type Hub interface {
	Call(ctx context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error)
}

// Options of Claims.
type Options struct {
	Store   onpath.Store
	Hub     Hub
	Clock   onpath.Clock
	After   timer.After
	Secrets func() [][]byte // passwords are made with them, the newest first; those of others are good, too
	Events  *events.Log
}

// Claims asks for what claims rest on, and writes how they stand. Make one with New.
type Claims struct {
	o Options

	mu       sync.Mutex
	claims   map[onpath.Key]*onpath.PrefixClaim // the newest that are known
	tenants  map[string]*onpath.Tenant
	chains   map[string]sites    // where those of a tenant may steer
	leases   map[string][]string // tenants of which modules are at a node
	gateways map[string][]string // that are connected, by cloudlet
	host     map[string]bool     // gateways of which chains may take what they themselves send
}

// sites are the cloudlets in which chains may steer, or all of them.
type sites struct {
	at  map[string]bool
	all bool
}

// New makes Claims that know nothing yet, and ask for nothing.
func New(o Options) *Claims { return &Claims{o: o} }

// Note takes up how things stand: the objects, the tenants of which modules are at nodes, and
// the connected gateways by cloudlet.
func (c *Claims) Note(objects map[onpath.Key]onpath.Object, leases, gateways map[string][]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.claims
	c.claims, c.tenants, c.chains = map[onpath.Key]*onpath.PrefixClaim{}, map[string]*onpath.Tenant{}, map[string]sites{}
	c.leases, c.gateways, c.host = leases, gateways, map[string]bool{}
	for k, o := range objects {
		switch o := o.(type) {
		case *onpath.PrefixClaim:
			if was := before[k]; was != nil && was.Metadata.UID == o.Metadata.UID && was.Metadata.Version > o.Metadata.Version {
				o = was // it was written here a moment ago
			}
			c.claims[k] = o
		case *onpath.Tenant:
			c.tenants[k.Name] = o
		case *onpath.Chain:
			c.chains[k.Tenant] = c.chains[k.Tenant].with(o)
		case *onpath.Node:
			c.host[k.Name] = slices.ContainsFunc(o.Spec.Uplinks, func(u onpath.Uplink) bool { return u.Attach == onpath.AttachHost })
		}
	}
}

// with adds where a chain may steer: what its status says is of the newest path, and the one
// before may steer still.
func (s sites) with(o *onpath.Chain) sites {
	if s.at == nil {
		s.at = map[string]bool{}
	}
	s.all = s.all || len(o.Spec.At.Cloudlets) == 0
	for _, cloudlet := range o.Spec.At.Cloudlets {
		s.at[cloudlet] = true
	}
	return s
}

// Run asks for the proofs of claims, and takes them back when they end. plan/ownership
// counts what is written here.
func (c *Claims) Run(ctx context.Context) {
	busy := map[onpath.Key]bool{}
	done := make(chan onpath.Key)
	turns := turns{}
	for {
		for due := c.dueClaims(busy); len(due) > 0 && len(busy) < asking; {
			now := c.o.Clock()
			p := nextClaim(due, busy, now)
			due = slices.DeleteFunc(due, func(o *onpath.PrefixClaim) bool { return o == p })
			if !turns.take(p, now) {
				waits, _ := turnOf(p, now)
				due = slices.DeleteFunc(due, func(o *onpath.PrefixClaim) bool {
					t, ok := turnOf(o, now)
					return ok && t == waits
				})
				continue
			}
			k := onpath.KeyOf(p)
			busy[k] = true
			go func() {
				c.proveOne(ctx, p)
				select {
				case done <- k:
				case <-ctx.Done():
				}
			}()
		}
		select {
		case <-ctx.Done():
			return
		case k := <-done:
			delete(busy, k)
		case <-c.o.After(250 * time.Millisecond):
		}
	}
}

// turn is what takes turns: the proved claims of a tenant, and the others.
type turn struct {
	tenant string
	proved bool
}

// turnOf is the turn of a claim; ok: its address is asked.
func turnOf(p *onpath.PrefixClaim, now time.Time) (t turn, ok bool) {
	return turn{p.Metadata.Tenant, p.ProvedAt(now)}, p.Spec.Method == onpath.ByPassword && p.Status.Password != ""
}

// turns bound how often addresses are asked for the claims of a tenant.
type turns map[turn]*rate.Limiter

func (t turns) take(p *onpath.PrefixClaim, now time.Time) bool {
	turn, ok := turnOf(p, now)
	if !ok {
		return true
	}
	l := t[turn]
	if l == nil {
		often := rate.Limit(askingUnproved)
		if turn.proved {
			often = askingProved
		}
		l = rate.NewLimiter(often, askingATenantOnce)
		t[turn] = l
	}
	return l.AllowN(now, 1)
}

// dueClaims are claims to be asked for now, or of which something is to be written.
func (c *Claims) dueClaims(busy map[onpath.Key]bool) (out []*onpath.PrefixClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.o.Clock()
	for k, p := range c.claims {
		if !busy[k] && (claimDue(p, now) || p.Spec.Method == onpath.ByOperator && c.givenStale(p)) {
			out = append(out, p)
		}
	}
	return out
}

// nextClaim is the one of those due that is asked for first: of the tenant that is asked
// for least just now, so that claims of one that never answer keep no other's waiting; then
// one that holds something, and the one that waits for longest.
func nextClaim(due []*onpath.PrefixClaim, busy map[onpath.Key]bool, now time.Time) *onpath.PrefixClaim {
	asked := map[string]int{}
	for k := range busy {
		asked[k.Tenant]++
	}
	holds := func(p *onpath.PrefixClaim) int {
		if p.ProvedAt(now) {
			return 0
		}
		return 1
	}
	return slices.MinFunc(due, func(a, b *onpath.PrefixClaim) int {
		return cmp.Or(cmp.Compare(asked[a.Metadata.Tenant], asked[b.Metadata.Tenant]), cmp.Compare(holds(a), holds(b)),
			a.Status.Checked.Compare(b.Status.Checked))
	})
}

// claimDue reports whether a claim by password is to be asked for.
func claimDue(p *onpath.PrefixClaim, now time.Time) bool {
	s := &p.Status
	if p.Spec.Method != onpath.ByPassword {
		return false
	}
	again := lateAgain
	switch life := lifeOf(p); {
	case s.Prefix.IsValid() && s.Prefix != p.Spec.Prefix:
		return true
	case s.State == onpath.ClaimProved:
		again = life / 2
	case s.State == onpath.ClaimExpiring:
		if !now.Before(s.Until) {
			return true
		}
		again = max(soonAgain, life/16)
	case now.Sub(p.Metadata.Created) < claimYoung:
		again = soonAgain
	}
	return now.Sub(s.Checked) >= again
}

// lifeOf is how long a proof lasts: at least as long as one that may be written now.
func lifeOf(p *onpath.PrefixClaim) time.Duration {
	return time.Duration(max(p.Spec.For, onpath.MinClaimLife))
}

// givenStale reports whether the status of a claim by the operator's word is not so any
// more. Callers hold mu.
func (c *Claims) givenStale(p *onpath.PrefixClaim) bool {
	state := c.givenState(p)
	return state != p.Status.State || state == onpath.ClaimProved && p.Status.Prefix != p.Spec.Prefix
}

// givenState is that of a claim by the operator's word. Callers hold mu.
func (c *Claims) givenState(p *onpath.PrefixClaim) onpath.ClaimState {
	switch {
	case p.Given(c.tenants[p.Metadata.Tenant]):
		return onpath.ClaimProved
	case p.Status.State == onpath.ClaimProved || p.Status.State == onpath.ClaimLost:
		return onpath.ClaimLost
	}
	return onpath.ClaimAsked
}

// proveOne asks for one claim and writes how it stands.
func (c *Claims) proveOne(ctx context.Context, p *onpath.PrefixClaim) {
	next := onpath.Clone(p)
	if p.Spec.Method == onpath.ByOperator {
		c.mu.Lock()
		state := c.givenState(p)
		c.mu.Unlock()
		given(next, state, c.o.Clock())
	} else {
		passwords := c.passwords(p)
		answer := onpath.PasswordAnswer{Saw: "it has just been made"}
		for _, password := range passwords {
			// What its tenant has not read yet is not asked for. While the server's secret is
			// rotated, the password before is good, too.
			if known := p.Status.Password == password || password != passwords[0] && p.Status.State != ""; known && !answer.Proved {
				answer = c.askGateways(ctx, p, password)
			}
		}
		if ctx.Err() != nil {
			return
		}
		next.Status.Password = passwords[0]
		settleClaim(next, answer, c.o.Clock())
	}
	changes := []onpath.Change{{Key: onpath.KeyOf(p), Object: next, Version: p.Metadata.Version}}
	if _, err := c.o.Store.Write(store.FollowUp(ctx), onpath.Batch{Changes: changes}); err != nil {
		return // it was changed meanwhile: it is looked at again
	}
	c.mu.Lock()
	if was := c.claims[onpath.KeyOf(p)]; was != nil && was.Metadata.Version < next.Metadata.Version {
		c.claims[onpath.KeyOf(p)] = next
	}
	c.mu.Unlock()
	c.tellClaim(p, next)
}

// News reports whether a claim says something else of whose a prefix is: a proof that goes on
// is no news.
func News(old, next *onpath.PrefixClaim) bool {
	a, b := &old.Status, &next.Status
	return a.State != b.State || a.Prefix != b.Prefix || a.Since != b.Since || old.Metadata.Generation != next.Metadata.Generation
}

// given is how a claim by the operator's word stands.
func given(p *onpath.PrefixClaim, state onpath.ClaimState, now time.Time) {
	s := &p.Status
	s.State, s.Checked = state, now.UTC().Round(0)
	switch state {
	case onpath.ClaimProved:
		s.Since, s.Prefix, s.Evidence = s.Checked, p.Spec.Prefix, "it lies in spec.addresses of the tenant"
	default:
		s.Since, s.Evidence = time.Time{}, "the operator has not written it into spec.addresses of the tenant"
	}
}

// settleClaim takes up what gateways saw.
func settleClaim(p *onpath.PrefixClaim, a onpath.PasswordAnswer, now time.Time) {
	s := &p.Status
	now = now.UTC().Round(0)
	held := p.ProvedAt(now)
	was := held || s.State == onpath.ClaimLost || s.State == onpath.ClaimProved || s.State == onpath.ClaimExpiring
	if s.Prefix.IsValid() && s.Prefix != p.Spec.Prefix {
		was = false
	}
	s.Checked, s.Evidence = now, a.Saw
	switch {
	case a.Proved:
		if !held {
			s.Since = now
		}
		s.State, s.Prefix, s.Until = onpath.ClaimProved, p.Spec.Prefix, now.Add(lifeOf(p))
	case held:
		s.State = onpath.ClaimExpiring
	default:
		s.Since, s.Until, s.Prefix = time.Time{}, time.Time{}, onpath.Prefix{}
		switch {
		case was:
			s.State = onpath.ClaimLost
		case a.Wrong:
			s.State = onpath.ClaimRefused
		default:
			s.State = onpath.ClaimAsked
		}
	}
}

// passwords are a claim's own, the newest first: another claim, or one made anew, has others.
func (c *Claims) passwords(p *onpath.PrefixClaim) (out []string) {
	for _, secret := range c.o.Secrets() {
		out = append(out, password(secret, p))
	}
	return out
}

func password(secret []byte, p *onpath.PrefixClaim) string {
	h := hmac.New(sha256.New, secret)
	for _, part := range []string{"claim", p.Metadata.Tenant, p.Metadata.Name, p.Metadata.UID, p.Spec.Prefix.String()} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return "onpath-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)[:16]))
}

// askGateways has gateways ask the address of a claim: all must see the password.
func (c *Claims) askGateways(ctx context.Context, p *onpath.PrefixClaim, password string) onpath.PasswordAnswer {
	nodes := c.askingNodes(p.Metadata.Tenant)
	if len(nodes) == 0 {
		return onpath.PasswordAnswer{Saw: "no gateway is connected that could ask"}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answers := make([]onpath.PasswordAnswer, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			a, err := c.askNode(ctx, n, onpath.PasswordRequest{Address: p.Spec.Prefix.Addr(), Password: password})
			if err != nil {
				a = onpath.PasswordAnswer{Saw: err.Error()}
			}
			answers[i] = a
		})
	}
	wg.Wait()
	all := onpath.PasswordAnswer{Proved: true}
	var proofs, failures []string
	for i, a := range answers {
		saw := fmt.Sprintf("node %s: %s", nodes[i], a.Saw)
		if a.Proved {
			proofs = append(proofs, saw)
		} else {
			failures = append(failures, saw)
		}
		all.Proved, all.Wrong = all.Proved && a.Proved, all.Wrong || a.Wrong
	}
	all.Saw = onpath.ClipText(strings.Join(append(failures, proofs...), "; "))
	return all
}

func (c *Claims) askNode(ctx context.Context, node string, r onpath.PasswordRequest) (a onpath.PasswordAnswer, err error) {
	s, err := c.o.Hub.Call(ctx, node, onpath.OpProve, r)
	if err != nil {
		return a, err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	b, err := io.ReadAll(io.LimitReader(s, 1<<16))
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	return a, err
}

// askingNodes are one each of two cloudlets, where there are two, and all at which the
// tenant may steer packets. No chain takes what a gateway itself asks: of the gateways on
// the way to an address the last one hears the address, and no instance of the tenant's
// that answers in its place.
func (c *Claims) askingNodes(tenant string) (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	others, chains := 2, c.chains[tenant]
	for cloudlet, list := range c.gateways { // in the order of the map, which is another one each time
		list = slices.DeleteFunc(slices.Clone(list), func(n string) bool { return c.host[n] })
		if len(list) > 0 && others > 0 {
			out = append(out, list[rand.IntN(len(list))])
			others--
		}
		for _, n := range list {
			if chains.all || chains.at[cloudlet] || slices.Contains(c.leases[n], tenant) {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// tellClaim tells the tenant what became of a claim.
func (c *Claims) tellClaim(old, next *onpath.PrefixClaim) {
	if old.Status.State == next.Status.State {
		return
	}
	warn := next.Status.State != onpath.ClaimProved && next.Status.State != onpath.ClaimAsked
	reason := "Claim" + strings.ToUpper(string(next.Status.State[:1])) + string(next.Status.State[1:])
	c.o.Events.Add(plan.Event{About: onpath.KeyOf(next), Reason: reason, Warning: warn,
		Message: fmt.Sprintf("%s is %s: %s", next.Spec.Prefix, next.Status.State, next.Status.Evidence)}, c.o.Clock())
}
