package control

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
	"github.com/onpath/onpath/store"
)

// Claims that wait are asked for every soonAgain in the first claimYoung of their life,
// later every lateAgain.
const (
	soonAgain  = time.Second
	lateAgain  = 10 * time.Second
	claimYoung = 2 * time.Minute
)

// asking bounds the claims that are asked for at once, and a second of those of a tenant that
// prove nothing: any address may be claimed, and who has it did not ask to be asked.
const (
	asking        = 8
	askingATenant = 10
)

// claims asks for what claims rest on.
type claims struct{ *Controller }

// prove asks for the proofs of claims, and takes them back when they end. plan/ownership
// counts what is written here.
func (c claims) prove(ctx context.Context) {
	busy := map[onpath.Key]bool{}
	done := make(chan onpath.Key)
	turns := turns{}
	for {
		for due := c.dueClaims(busy); len(due) > 0 && len(busy) < asking; {
			now := c.o.Clock()
			p := nextClaim(due, busy, now)
			due = slices.DeleteFunc(due, func(o *onpath.PrefixClaim) bool { return o == p })
			if !turns.take(p, now) {
				due = slices.DeleteFunc(due, func(o *onpath.PrefixClaim) bool {
					return o.Metadata.Tenant == p.Metadata.Tenant && turns.needs(o, now)
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

// turns bound how often addresses are asked for claims that prove nothing, by tenant.
type turns map[string]*rate.Limiter

// needs reports whether an address is asked that may not want to be.
func (t turns) needs(p *onpath.PrefixClaim, now time.Time) bool {
	return p.Spec.Method == onpath.ByPassword && p.Status.Password != "" && !p.ProvedAt(now)
}

func (t turns) take(p *onpath.PrefixClaim, now time.Time) bool {
	if !t.needs(p, now) {
		return true
	}
	l := t[p.Metadata.Tenant]
	if l == nil {
		l = rate.NewLimiter(askingATenant, askingATenant)
		t[p.Metadata.Tenant] = l
	}
	return l.AllowN(now, 1)
}

// dueClaims are claims to be asked for now, or of which something is to be written.
func (c claims) dueClaims(busy map[onpath.Key]bool) (out []*onpath.PrefixClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held {
		return nil
	}
	now := c.o.Clock()
	for k, p := range c.mirror.claims {
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
	switch life := time.Duration(p.Spec.For); {
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

// givenStale reports whether the status of a claim by the operator's word is not so any
// more. Callers hold mu.
func (c claims) givenStale(p *onpath.PrefixClaim) bool {
	state := c.givenState(p)
	return state != p.Status.State || state == onpath.ClaimProved && p.Status.Prefix != p.Spec.Prefix
}

// givenState is that of a claim by the operator's word. Callers hold mu.
func (c claims) givenState(p *onpath.PrefixClaim) onpath.ClaimState {
	t, _ := c.mirror.objects[onpath.Key{Kind: onpath.KindTenant, Name: p.Metadata.Tenant}].(*onpath.Tenant)
	switch {
	case p.Given(t):
		return onpath.ClaimProved
	case p.Status.State == onpath.ClaimProved || p.Status.State == onpath.ClaimLost:
		return onpath.ClaimLost
	}
	return onpath.ClaimAsked
}

// proveOne asks for one claim and writes how it stands.
func (c claims) proveOne(ctx context.Context, p *onpath.PrefixClaim) {
	next := onpath.Clone(p)
	if p.Spec.Method == onpath.ByOperator {
		c.mu.Lock()
		state := c.givenState(p)
		c.mu.Unlock()
		given(next, state, c.o.Clock())
	} else {
		password := c.password(p)
		answer := onpath.PasswordAnswer{Saw: "it has just been made"}
		if p.Status.Password == password { // else its tenant reads it first
			answer = c.askGateways(ctx, p, password)
		}
		if ctx.Err() != nil {
			return
		}
		next.Status.Password = password
		settleClaim(next, answer, c.o.Clock())
	}
	changes := []onpath.Change{{Key: onpath.KeyOf(p), Object: next, Version: p.Metadata.Version}}
	if _, err := c.o.Store.Write(store.FollowUp(ctx), onpath.Batch{Changes: changes}); err != nil {
		if onpath.CodeOf(err) == onpath.CodeConflict {
			_ = c.reread(ctx, onpath.KeyOf(p)) // changed meanwhile: it is looked at again
		}
		return
	}
	c.took(changes)
	c.tellClaim(p, next)
	if a, b := &p.Status, &next.Status; a.State != b.State || a.Prefix != b.Prefix || a.Since != b.Since {
		c.kick() // a proof that goes on is no news
	}
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
		s.State, s.Prefix, s.Until = onpath.ClaimProved, p.Spec.Prefix, now.Add(time.Duration(p.Spec.For))
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

// password is a claim's own: another claim, or one made anew, has another.
func (c claims) password(p *onpath.PrefixClaim) string {
	h := hmac.New(sha256.New, c.o.Settings.Secret)
	for _, part := range []string{"claim", p.Metadata.Tenant, p.Metadata.Name, p.Metadata.UID, p.Spec.Prefix.String()} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return "onpath-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil)[:16]))
}

// askGateways has gateways ask the address of a claim: all must see the password.
func (c claims) askGateways(ctx context.Context, p *onpath.PrefixClaim, password string) onpath.PasswordAnswer {
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

func (c claims) askNode(ctx context.Context, node string, r onpath.PasswordRequest) (a onpath.PasswordAnswer, err error) {
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
func (c claims) askingNodes(tenant string) (out []string) {
	gateways := connectedGateways(c.Controller)
	c.mu.Lock()
	defer c.mu.Unlock()
	at, all := c.chainsAt(tenant)
	others := 2
	for cloudlet, list := range gateways { // in the order of the map, which is another one each time
		list = slices.DeleteFunc(list, c.carriesHost)
		if len(list) > 0 && others > 0 {
			out = append(out, list[rand.IntN(len(list))])
			others--
		}
		for _, n := range list {
			if all || at[cloudlet] || c.leasesAt(tenant, n) {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// carriesHost reports whether chains may take what a node itself sends. Callers hold mu.
func (c claims) carriesHost(node string) bool {
	n, ok := c.mirror.objects[onpath.Key{Kind: onpath.KindNode, Name: node}].(*onpath.Node)
	return !ok || slices.ContainsFunc(n.Spec.Uplinks, func(u onpath.Uplink) bool { return u.Attach == onpath.AttachHost })
}

// chainsAt are the cloudlets in which chains of a tenant may steer, or all of them: what
// their status says is of the newest path, and the one before may steer still. Callers hold mu.
func (c claims) chainsAt(tenant string) (at map[string]bool, all bool) {
	at = map[string]bool{}
	for k, o := range c.mirror.chains {
		if k.Tenant != tenant {
			continue
		}
		all = all || len(o.Spec.At.Cloudlets) == 0
		for _, cloudlet := range o.Spec.At.Cloudlets {
			at[cloudlet] = true
		}
	}
	return at, all
}

// leasesAt reports whether modules of a tenant's are at a node. Callers hold mu.
func (c claims) leasesAt(tenant, node string) bool {
	st := c.nodes[node]
	return st != nil && st.state.Report != nil && slices.ContainsFunc(st.state.Report.Leases, func(l onpath.LeaseReport) bool {
		return l.Known && l.Publisher == tenant
	})
}

// tellClaim tells the tenant what became of a claim.
func (c claims) tellClaim(old, next *onpath.PrefixClaim) {
	if old.Status.State == next.Status.State {
		return
	}
	warn := next.Status.State != onpath.ClaimProved && next.Status.State != onpath.ClaimAsked
	reason := "Claim" + strings.ToUpper(string(next.Status.State[:1])) + string(next.Status.State[1:])
	c.Tell(onpath.KeyOf(next), reason, fmt.Sprintf("%s is %s: %s", next.Spec.Prefix, next.Status.State, next.Status.Evidence), warn)
}
